//! The disk of a SQLite file is full for a while.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use outbox_sinks::scripted::{Controller, Reply};
use outbox_tests::process::wait_until;
use tempfile::TempDir;

use crate::stage::{Engine, Stage};

const ROWS: u32 = 500;

/// Unmounts and removes the directory $1 when the pipe closes, which it does however this process ends.
const KEEPER: &str = r#"
cat >/dev/null
umount -l "$1"
rm -rf "$1"
"#;

/// A small file system in memory.
struct SmallDisk {
    directory: std::path::PathBuf,
    keeper: Child,
}

impl SmallDisk {
    /// `None` when this user may not mount.
    fn mount() -> Result<Option<Self>> {
        let directory = TempDir::new()?.keep();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=8m", "outbox-tests"]).arg(&directory);
        if !mount.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
            fs::remove_dir(&directory)?;
            return Ok(None);
        }
        let mut keeper = Command::new("sh");
        keeper.arg("-c").arg(KEEPER).arg("sh").arg(&directory).current_dir("/");
        let keeper = keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Some(Self { directory, keeper }))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        // Nothing can be done about what it cannot unmount.
        let _ = self.keeper.wait();
    }
}

/// Takes all the room that there is.
fn fill(path: &Path) -> Result<()> {
    let mut file = File::options().create(true).append(true).open(path)?;
    for size in [64 * 1024, 1024, 1] {
        while file.write_all(&vec![0; size]).is_ok() {}
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_waited_for_on_sqlite() -> Result<()> {
    let Some(disk) = SmallDisk::mount()? else {
        outbox_tests::skip("this user may not mount a tmpfs");
        return Ok(());
    };
    let sink = Controller::bind(|_| Reply::Ack).await?;
    let play = format!(
        "[queues.default]\nsink = \"scripted\"\nbatch = 100\nlease = \"3s\"\npublish_timeout = \"1500ms\"\n\
         [sinks.scripted]\ntype = \"scripted\"\naddress = \"{}\"\n[sweeper]\ninterval = \"500ms\"\n",
        sink.address()
    );
    let url = format!("sqlite://{}", disk.directory.join("outbox.db").display());
    let mut stage = Stage::on(Engine::Sqlite, url, play).await?;
    // The queue is registered, so that the first write that fails is a claim.
    stage.outbox(&["run", "--once"])?;
    stage.insert("k", ROWS).await?;
    let filler = disk.directory.join("filler");
    fill(&filler)?;
    let mut relay = stage.relay("relay")?;
    wait_until("the relay says that the disk is full", Duration::from_secs(30), || {
        relay.log().contains("disk is full")
    })
    .with_context(|| relay.log())?;
    ensure!(relay.try_status()?.is_none(), "the relay ended: {}", relay.log());

    fs::remove_file(&filler)?;
    let unsettled = "SELECT count(*) FROM outbox_tasks WHERE settled_at IS NULL";
    stage.until(unsettled, 0, Duration::from_secs(60)).await.with_context(|| relay.log())?;
    ensure!(stage.count("PUBLISHED").await? == i64::from(ROWS), "every row is delivered");
    ensure!(stage.number("SELECT count(*) FROM outbox_claims").await? == 0, "no claim is left");
    let mut seen = std::collections::HashSet::new();
    let first: Vec<i64> = sink
        .delivered()
        .iter()
        .filter(|delivery| seen.insert(delivery.id))
        .map(|delivery| delivery.seq)
        .collect();
    ensure!(first.len() == ROWS as usize && first.is_sorted(), "each in its place");
    relay.terminate();
    ensure!(relay.wait(Duration::from_secs(15))?.success(), "SIGTERM: {}", relay.log());
    Ok(())
}
