//! A private nats server.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{free_port, kill};
use crate::process::{bound, spawn, wait_until};

/// How long it may take to load its streams and listen.
const READY: Duration = Duration::from_secs(30);

/// A `nats-server` with JetStream on 127.0.0.1.
#[derive(Debug)]
pub struct Nats {
    directory: TempDir,
    port: u16,
    child: Mutex<Child>,
}

impl Nats {
    /// Starts one (`OUTBOX_TEST_NATS_SERVER`, or the one in PATH); `settings` are further lines of its configuration.
    ///
    /// # Errors
    /// When `nats-server` is not installed or does not come up.
    pub fn start(settings: &str) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("outbox-nats").tempdir()?;
        let port = free_port()?;
        let store = directory.path().join("data");
        let config = format!(
            "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{}\" }}\n{settings}\n",
            store.display()
        );
        fs::write(directory.path().join("nats.conf"), config)?;
        let child = Mutex::new(launch(&directory, port)?);
        Ok(Self { directory, port, child })
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

    /// SIGSTOP: connections stay, and nobody answers.
    ///
    /// # Errors
    /// When it is gone.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    ///
    /// # Errors
    /// When it is gone.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.lock().unwrap_or_else(PoisonError::into_inner).id();
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no process id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Starts it again on the same data and port.
    ///
    /// # Errors
    /// When it does not come up.
    pub fn start_again(&self) -> Result<()> {
        let child = launch(&self.directory, self.port)?;
        *self.child.lock().unwrap_or_else(PoisonError::into_inner) = child;
        Ok(())
    }

    /// Makes a stream of this name for the subject of the same name; `more` are further settings.
    ///
    /// # Errors
    /// When the server refuses.
    pub fn create_stream(&self, name: &str, more: Value) -> Result<()> {
        let mut config = json!({"name": name, "subjects": [name], "storage": "file", "num_replicas": 1,
            "retention": "limits", "discard": "old", "max_msgs": -1, "max_bytes": -1, "max_age": 0, "max_consumers": -1});
        if let (Some(config), Value::Object(more)) = (config.as_object_mut(), more) {
            config.extend(more);
        }
        let answer = request(self.port, &format!("$JS.API.STREAM.CREATE.{name}"), &config.to_string())?;
        ensure!(answer.get("error").is_none(), "stream {name}: {answer}");
        Ok(())
    }

    /// What the server says of a stream.
    ///
    /// # Errors
    /// When there is none.
    pub fn stream_info(&self, name: &str) -> Result<Value> {
        let answer = request(self.port, &format!("$JS.API.STREAM.INFO.{name}"), "")?;
        ensure!(answer.get("error").is_none(), "stream {name}: {answer}");
        Ok(answer)
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.kill();
    }
}

fn launch(directory: &TempDir, port: u16) -> Result<Child> {
    let log = File::options().create(true).append(true).open(directory.path().join("log"))?;
    let program = std::env::var_os("OUTBOX_TEST_NATS_SERVER").map_or_else(program, PathBuf::from);
    let mut command = bound(program);
    command.arg("-c").arg(directory.path().join("nats.conf"));
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut child = spawn(command).context("nats-server (Debian: apt-get install nats-server)")?;
    let ready = wait_until("nats-server", READY, || hello(port).is_ok());
    if let Err(error) = ready {
        kill(&mut child)?;
        return Err(error.context(fs::read_to_string(directory.path().join("log"))?));
    }
    Ok(child)
}

/// Debian installs it where only root looks.
fn program() -> PathBuf {
    let debian = PathBuf::from("/usr/sbin/nats-server");
    if debian.exists() { debian } else { "nats-server".into() }
}

/// Connects and returns the server's greeting.
fn hello(port: u16) -> Result<(BufReader<TcpStream>, String)> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(READY))?;
    let mut reader = BufReader::new(stream);
    let mut info = String::new();
    reader.read_line(&mut info)?;
    ensure!(info.starts_with("INFO "), "no NATS server: {info}");
    Ok((reader, info))
}

/// One request of the server's API, without a login.
fn request(port: u16, subject: &str, body: &str) -> Result<Value> {
    let (mut reader, _) = hello(port)?;
    let length = body.len();
    let lines = format!(
        "CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB {subject} answer {length}\r\n{body}\r\n"
    );
    reader.get_mut().write_all(lines.as_bytes())?;
    loop {
        let mut line = String::new();
        ensure!(reader.read_line(&mut line)? > 0, "{subject}: the server closed the connection");
        ensure!(!line.starts_with("-ERR"), "{subject}: {line}");
        if line.starts_with("MSG ") {
            let length: usize = line.split_whitespace().next_back().context("a length")?.parse()?;
            let mut answer = vec![0; length];
            reader.read_exact(&mut answer)?;
            return Ok(serde_json::from_slice(&answer)?);
        }
    }
}
