//! Where the relay delivers to. Adding a sink = one file, one cargo feature and one line in the registry.

mod sink;

pub use sink::{Answer, Cause, Message, Refusal, Sink};
