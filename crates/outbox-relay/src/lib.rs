//! The relay as a library: per queue claim → route → encode → publish → settle. The binary `outbox` wires it.

pub mod settings;
