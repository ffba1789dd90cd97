//! Private brokers: own directory, free port, gone with the tests.

pub mod kafka;
pub mod nats;
pub mod rabbitmq;
pub mod redis;

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::wait_until;

/// Removes the directory $1 when the pipe closes, again until nothing writes into it any more.
const KEEPER: &str = r#"
cat >/dev/null
until rm -rf "$1" 2>/dev/null; do sleep 0.1; done
"#;

/// A temporary directory that is gone with this process, however it ends: what lies in a `static` is never dropped.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    keeper: Mutex<Child>,
}

impl Directory {
    /// Makes one whose name begins so.
    ///
    /// # Errors
    /// When it cannot be made, or there is no shell.
    pub fn new(prefix: &str) -> Result<Self> {
        let path = tempfile::Builder::new().prefix(prefix).tempdir()?.keep();
        let mut keeper = Command::new("sh");
        keeper.arg("-c").arg(KEEPER).arg("sh").arg(&path).current_dir("/");
        keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let keeper = Mutex::new(keeper.spawn().context("cannot start sh")?);
        Ok(Self { path, keeper })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let keeper = self.keeper.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(keeper.stdin.take());
        // Nothing can be done about what it cannot remove.
        let _ = keeper.wait();
    }
}

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
