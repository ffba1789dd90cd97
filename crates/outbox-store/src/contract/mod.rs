//! The cases every store is tested with.
