//! `type = "stdout"`: one JSON line an event on standard output.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, write};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::json_lines::{Lines, lines};
use crate::{Answer, Cause, Message, Sink};

/// A writable pipe takes this much without blocking (PIPE_BUF of Linux).
const CHUNK_BYTES: usize = 4096;

/// Options of the stdout sink: none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {}

impl Config {
    /// Makes the sink.
    ///
    /// # Errors
    /// One line that names the sink when standard output is closed.
    pub fn build(&self, name: &str) -> Result<Arc<dyn Sink>, String> {
        let fd = std::io::stdout()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| format!("sinks.{name}: standard output cannot be used: {error}"))?;
        Ok(Arc::new(Stdout::on(fd)))
    }
}

/// Writes JSON lines to a descriptor that may block, without ever blocking past a deadline.
#[derive(Debug)]
pub struct Stdout {
    output: Arc<Mutex<Output>>,
}

#[derive(Debug)]
struct Output {
    fd: OwnedFd,
    /// The last line was cut short by a deadline or an error.
    torn: bool,
}

impl Stdout {
    /// Writes to this descriptor.
    #[must_use]
    pub fn on(fd: OwnedFd) -> Self {
        Self { output: Arc::new(Mutex::new(Output { fd, torn: false })) }
    }
}

/// Stops the writer when the future that waits for it is dropped.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[async_trait]
impl Sink for Stdout {
    fn kind(&self) -> &'static str {
        "stdout"
    }

    fn needs_destination(&self) -> bool {
        false
    }

    async fn publish(&self, batch: &[Message<'_>], deadline: Instant) -> Vec<Answer> {
        let lines = lines(batch);
        let output = Arc::clone(&self.output);
        let cancelled = Arc::new(AtomicBool::new(false));
        let _guard = CancelOnDrop(Arc::clone(&cancelled));
        let count = batch.len();
        let write = move || {
            let mut output = output.lock().unwrap_or_else(PoisonError::into_inner);
            write_lines(&mut output, &lines, deadline, &cancelled)
        };
        match tokio::task::spawn_blocking(write).await {
            Ok(answers) => answers,
            Err(error) => vec![Answer::refused(Cause::Sink, format!("the writer failed: {error}")); count],
        }
    }

    async fn check(&self, _deadline: Instant) -> Result<String, String> {
        Ok("writes to standard output".to_owned())
    }

    async fn close(&self) {}
}

fn write_lines(output: &mut Output, lines: &Lines, deadline: Instant, cancelled: &AtomicBool) -> Vec<Answer> {
    let mut answers = Vec::with_capacity(lines.starts.len());
    for index in 0..lines.starts.len() {
        if cancelled.load(Ordering::Acquire) || Instant::now() >= deadline {
            break;
        }
        match write_line(output, lines.line(index), deadline) {
            Ok(()) => answers.push(Answer::Acked { receipt: None }),
            Err(Errno::TIMEDOUT) => {
                answers.push(Answer::silence(Cause::Sink));
                break;
            }
            Err(error) => {
                answers.push(Answer::refused(
                    Cause::Sink,
                    format!("standard output cannot be written: {error}"),
                ));
                break;
            }
        }
    }
    answers.resize(lines.starts.len(), Answer::Unsent);
    answers
}

fn write_line(output: &mut Output, line: &[u8], deadline: Instant) -> Result<(), Errno> {
    if output.torn {
        write_all(&output.fd, b"\n", deadline)?;
        output.torn = false;
    }
    let written = write_all(&output.fd, line, deadline);
    output.torn = written.is_err();
    written
}

/// Pieces that a writable pipe takes at once, each after waiting until it is writable: so no write blocks.
fn write_all(fd: &OwnedFd, mut bytes: &[u8], deadline: Instant) -> Result<(), Errno> {
    while !bytes.is_empty() {
        wait_writable(fd, deadline)?;
        match write(fd, &bytes[..bytes.len().min(CHUNK_BYTES)]) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn wait_writable(fd: &OwnedFd, deadline: Instant) -> Result<(), Errno> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Errno::TIMEDOUT);
        }
        let timeout = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        match poll(&mut [PollFd::new(fd, PollFlags::OUT)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
