//! What a sink adds to its broker's own client: the same messages, the same acknowledgements, no database.

pub(crate) mod kafka;
