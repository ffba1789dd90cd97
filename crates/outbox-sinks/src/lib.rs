//! Where the relay delivers to. Adding a sink = one file, one cargo feature and one line in the registry.

pub mod batch;
#[cfg(any(feature = "stdout", feature = "file"))]
mod json_lines;
mod registry;
mod sink;

#[cfg(feature = "file")]
pub mod file;
#[cfg(feature = "null")]
pub mod null;
#[cfg(feature = "scripted")]
pub mod scripted;
#[cfg(feature = "stdout")]
pub mod stdout;

pub use registry::{NotInThisBuild, SinkConfig, build};
pub use sink::{Answer, Cause, Message, Refusal, Sink};
