//! The relay as a library: per queue claim → route → encode → publish → settle. The binary `outbox` wires it.

mod breaker;
pub mod cli;
pub mod config;
mod encode;
pub mod health;
pub mod http;
pub mod logging;
pub mod metrics;
mod pipeline;
pub mod route;
pub mod settings;
mod verdict;

pub use pipeline::{Drained, Relay, RelayParts, SinkBinding};
