//! A private redis server.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::{free_port, kill};
use crate::process::{bound, spawn, wait_until};

/// How long it may take to load its data and listen.
const READY: Duration = Duration::from_secs(30);

/// A `redis-server` on 127.0.0.1 whose append-only file is flushed with every write.
#[derive(Debug)]
pub struct Redis {
    directory: TempDir,
    port: u16,
    settings: Vec<String>,
    child: Mutex<Child>,
}

impl Redis {
    /// Starts one; `settings` are further arguments, `--name value`.
    ///
    /// # Errors
    /// When `redis-server` is not installed or does not come up.
    pub fn start(settings: &[&str]) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("outbox-redis").tempdir()?;
        let port = free_port()?;
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        let child = Mutex::new(launch(&directory, port, &settings)?);
        Ok(Self { directory, port, settings, child })
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// SIGKILL.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn kill(&self) -> Result<()> {
        kill(&mut self.child.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts it again on the same data and port.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start_again(&self) -> Result<()> {
        let child = launch(&self.directory, self.port, &self.settings)?;
        *self.child.lock().unwrap_or_else(PoisonError::into_inner) = child;
        Ok(())
    }

    /// Sends one command, words separated by spaces, and returns the first line of the answer.
    ///
    /// # Errors
    /// When it cannot be asked or answers with an error.
    pub fn command(&self, command: &str) -> Result<String> {
        let answer = ask(self.port, command)?;
        ensure!(!answer.starts_with('-'), "{command}: {answer}");
        Ok(answer)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.kill();
    }
}

fn launch(directory: &TempDir, port: u16, settings: &[String]) -> Result<Child> {
    let log = File::options().create(true).append(true).open(directory.path().join("log"))?;
    let mut command = bound("redis-server");
    command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
    command.args(["--port", &port.to_string(), "--dir"]).arg(directory.path()).args(settings);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut child = spawn(command).context("redis-server (Debian: apt-get install redis-server)")?;
    // While it loads its file it answers with an error.
    let ready = wait_until("redis-server", READY, || {
        ask(port, "PING").is_ok_and(|answer| answer == "+PONG" || answer.starts_with("-NOAUTH"))
    });
    if let Err(error) = ready {
        kill(&mut child)?;
        return Err(error.context(std::fs::read_to_string(directory.path().join("log"))?));
    }
    Ok(child)
}

fn ask(port: u16, command: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(READY))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}
