//! Each sink against the real thing it writes to.

mod batch;
mod common;
#[cfg(feature = "file")]
mod file;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "scripted")]
mod scripted;
#[cfg(feature = "stdout")]
mod stdout;
