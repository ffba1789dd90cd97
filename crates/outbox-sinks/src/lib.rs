//! Where the relay delivers to. Adding a sink = one module, one cargo feature and one line in the registry.

pub mod batch;
#[cfg(any(feature = "stdout", feature = "file"))]
mod json_lines;
#[cfg(any(feature = "http", feature = "kafka", feature = "nats", feature = "rabbitmq", feature = "redis"))]
#[allow(dead_code, reason = "no sink uses all of it, and a build may have one sink")]
mod options;
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod pool;
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis"))]
mod reconnect;
mod registry;
pub mod secret;
mod sink;

#[cfg(feature = "file")]
pub mod file;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(feature = "null")]
pub mod null;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "scripted")]
pub mod scripted;
#[cfg(feature = "stdout")]
pub mod stdout;

pub use registry::{NotInThisBuild, SinkConfig, build};
pub use sink::{Answer, Cause, Message, Refusal, Sink};

/// Makes *ring* the process's provider of cryptography, for all sinks that speak TLS. Comes before the first sink is
/// built, first thing in `main`; a provider that is installed already stays.
pub fn install_crypto_provider() {
    // Refused only when there is one.
    #[cfg(any(feature = "http", feature = "nats", feature = "rabbitmq", feature = "redis"))]
    let _ = rustls::crypto::ring::default_provider().install_default();
}
