//! `type = "file"`: one JSON line an event, appended to a file that several relays may share.
//!
//! Each batch is one write under an exclusive lock, flushed to the disk before it is acknowledged. Nothing is ever
//! taken back: a line that a crash or a full disk cut short is ended with a newline by whoever writes next, and its
//! event is written again.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

use async_trait::async_trait;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::json_lines::{Lines, lines};
use crate::{Answer, Cause, Message, Sink};

/// Time between two tries for the lock. A blocking flock could not be given up at the deadline.
const LOCK_POLL: Duration = Duration::from_millis(2);

/// Options of the file sink.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The file to append to. It is created when missing; its directory is not.
    pub path: PathBuf,
}

impl Config {
    /// Makes the sink; the file is opened with the first batch.
    ///
    /// # Errors
    /// One line that names the sink when the path is empty.
    pub fn build(&self, name: &str) -> Result<Arc<dyn Sink>, String> {
        if self.path.as_os_str().is_empty() {
            return Err(format!("sinks.{name}: `path` is empty; name the file to append to"));
        }
        Ok(Arc::new(AppendFile::new(self.path.clone())))
    }
}

/// Appends JSON lines to a file.
#[derive(Debug)]
pub struct AppendFile {
    path: Arc<PathBuf>,
    /// The open file; `None` before the first batch and after an error.
    file: Arc<Mutex<Option<File>>>,
}

impl AppendFile {
    /// Appends to the file at this path.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path: Arc::new(path), file: Arc::new(Mutex::new(None)) }
    }
}

/// Keeps a write from starting once the future that waits for it is dropped.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[async_trait]
impl Sink for AppendFile {
    fn kind(&self) -> &'static str {
        "file"
    }

    fn needs_destination(&self) -> bool {
        false
    }

    async fn publish(&self, batch: &[Message<'_>], deadline: Instant) -> Vec<Answer> {
        let lines = lines(batch);
        let count = batch.len();
        let (path, file) = (Arc::clone(&self.path), Arc::clone(&self.file));
        let cancelled = Arc::new(AtomicBool::new(false));
        let _guard = CancelOnDrop(Arc::clone(&cancelled));
        let append = move || {
            let until = Until { deadline, cancelled: &cancelled };
            append_batch(&path, &file, &lines, &until)
        };
        match tokio::task::spawn_blocking(append).await {
            Ok(answers) => answers,
            Err(error) => vec![Answer::refused(Cause::Sink, format!("the writer failed: {error}")); count],
        }
    }

    async fn check(&self, _deadline: Instant) -> Result<String, String> {
        let path = Arc::clone(&self.path);
        let look = move || match open(&path) {
            Ok(_) => Ok(format!("appends to {}", path.display())),
            Err(error) => Err(describe(&path, &error)),
        };
        tokio::task::spawn_blocking(look).await.unwrap_or_else(|error| Err(error.to_string()))
    }

    async fn close(&self) {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// When a batch may no longer begin.
struct Until<'a> {
    deadline: Instant,
    cancelled: &'a AtomicBool,
}

impl Until<'_> {
    fn is_over(&self) -> bool {
        self.cancelled.load(Ordering::Acquire) || Instant::now() >= self.deadline
    }
}

fn append_batch(path: &Path, shared: &Mutex<Option<File>>, lines: &Lines, until: &Until<'_>) -> Vec<Answer> {
    let count = lines.starts.len();
    let Some(mut guard) = lock_before(shared, until) else {
        return vec![Answer::Unsent; count];
    };
    match append(path, &mut guard, lines, until) {
        Ok(Some(offset)) => receipts(path, offset, lines),
        Ok(None) => vec![Answer::Unsent; count],
        Err(error) => {
            // A descriptor whose flush failed may report success the next time.
            guard.take();
            vec![Answer::refused(Cause::Sink, describe(path, &error)); count]
        }
    }
}

fn lock_before<'m, T>(shared: &'m Mutex<T>, until: &Until<'_>) -> Option<std::sync::MutexGuard<'m, T>> {
    loop {
        match shared.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if until.is_over() => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_POLL),
        }
    }
}

/// Writes and flushes the batch; `None` when its time was over before the write began, else where it begins.
fn append(path: &Path, slot: &mut Option<File>, lines: &Lines, until: &Until<'_>) -> io::Result<Option<u64>> {
    loop {
        let file = match slot.take() {
            Some(file) => slot.insert(file),
            None => slot.insert(open(path)?),
        };
        if !lock_file(file, until)? {
            return Ok(None);
        }
        // Looked at under the lock: a file that was rotated away meanwhile gets nothing more.
        if !is_still_at(file, path)? {
            slot.take();
            continue;
        }
        let written = if until.is_over() { Ok(None) } else { write_lines(file, lines).map(Some) };
        let unlocked = flock(&*file, FlockOperation::Unlock);
        let offset = written?;
        unlocked?;
        return Ok(offset);
    }
}

fn write_lines(file: &mut File, lines: &Lines) -> io::Result<u64> {
    let end = file.metadata()?.len();
    let torn = end > 0 && {
        let mut last = [0];
        file.read_exact_at(&mut last, end - 1)?;
        last[0] != b'\n'
    };
    if torn {
        file.write_all(b"\n")?;
    }
    file.write_all(&lines.bytes)?;
    file.sync_data()?;
    Ok(end + u64::from(torn))
}

fn lock_file(file: &File, until: &Until<'_>) -> io::Result<bool> {
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK | Errno::INTR) if until.is_over() => return Ok(false),
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(LOCK_POLL),
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_still_at(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(named) => Ok(named.dev() == open.dev() && named.ino() == open.ino()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Read as well: the last byte says whether the last line is whole.
    options.read(true).append(true);
    let file = match options.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => create(&options, path)?,
        opened => opened?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(
            ErrorKind::InvalidInput,
            "not a regular file; use `type = \"stdout\"` for a pipe",
        ));
    }
    Ok(file)
}

/// A new file's lines are only safe once its name is.
fn create(options: &OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.clone().create(true).open(path)?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(directory)?.sync_all()?;
    Ok(file)
}

fn receipts(path: &Path, offset: u64, lines: &Lines) -> Vec<Answer> {
    let receipt = |start: &usize| format!("{}@{}", path.display(), offset + *start as u64);
    lines.starts.iter().map(|start| Answer::Acked { receipt: Some(receipt(start)) }).collect()
}

fn describe(path: &Path, error: &io::Error) -> String {
    format!("{} cannot be appended to: {error}", path.display())
}
