//! Private brokers: own directory, free port, gone with the tests.

pub mod kafka;
pub mod nats;
pub mod rabbitmq;
pub mod redis;

use std::net::{TcpListener, TcpStream};
use std::process::Child;
use std::time::Duration;

use anyhow::Result;

use crate::process::wait_until;

/// A port that is free now, below the range from which the system gives ports to clients, so that a server that was
/// killed finds it free again.
///
/// # Errors
/// When there is none.
pub fn free_port() -> Result<u16> {
    loop {
        let port = rand::random_range(10_000..30_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
}

/// Waits until something listens.
///
/// # Errors
/// When nothing does in time.
pub fn wait_for_port(port: u16, at_most: Duration) -> Result<()> {
    wait_until(&format!("a server at port {port}"), at_most, || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    })
}

/// SIGKILL, and waits for the end.
///
/// # Errors
/// When the process cannot be waited for.
pub fn kill(child: &mut Child) -> Result<()> {
    child.kill()?;
    child.wait()?;
    Ok(())
}
