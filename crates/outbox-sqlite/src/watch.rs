//! Early word of writes to the database's WAL, where the system gives it: inotify on Linux.
//!
//! A hint, nothing more. Frames are written before their commit is visible, other files and file systems give no word,
//! and a file that was replaced is watched no longer: who waits looks by itself too.

use std::path::Path;

/// Watches one file.
pub(crate) struct Watch {
    #[cfg(target_os = "linux")]
    events: Option<inotify::EventStream<[u8; 1024]>>,
}

impl Watch {
    /// Watches the WAL of this database, if it exists and the system can. Needs a tokio runtime.
    pub(crate) fn new(database: &Path) -> Self {
        let mut wal = database.as_os_str().to_owned();
        wal.push("-wal");
        Self::of(Path::new(&wal))
    }
}

#[cfg(target_os = "linux")]
impl Watch {
    fn of(wal: &Path) -> Self {
        let watched = || {
            let inotify = inotify::Inotify::init()?;
            inotify.watches().add(wal, inotify::WatchMask::MODIFY)?;
            inotify.into_event_stream([0; 1024])
        };
        Self { events: watched().ok() }
    }

    /// False when nothing will be told.
    pub(crate) fn works(&self) -> bool {
        self.events.is_some()
    }

    /// Until somebody writes; for ever where the system does not tell.
    pub(crate) async fn written(&mut self) {
        use futures_util::StreamExt;
        let told = match &mut self.events {
            Some(events) => matches!(events.next().await, Some(Ok(_))),
            None => std::future::pending().await,
        };
        if !told {
            self.events = None;
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl Watch {
    fn of(_wal: &Path) -> Self {
        Self {}
    }

    pub(crate) fn works(&self) -> bool {
        false
    }

    pub(crate) async fn written(&mut self) {
        std::future::pending().await
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::Duration;

    use super::*;

    fn write(path: &Path) {
        let mut file = std::fs::File::options().append(true).open(path).expect("open");
        std::io::Write::write_all(&mut file, b"1").expect("write");
    }

    #[tokio::test]
    async fn writes_to_the_wal_are_told_and_a_missing_one_is_not_waited_for() {
        let directory = tempfile::tempdir().expect("a directory");
        let database = directory.path().join("app.db");
        assert!(!Watch::new(&database).works());
        let wal = directory.path().join("app.db-wal");
        std::fs::write(&wal, "1").expect("write");
        let mut watch = Watch::new(&database);
        assert!(watch.works());
        for _ in 0..2 {
            write(&wal);
            tokio::time::timeout(Duration::from_secs(10), watch.written()).await.expect("told");
        }
        let silence = tokio::time::timeout(Duration::from_millis(50), watch.written()).await;
        assert!(silence.is_err(), "nothing was written");
    }
}
