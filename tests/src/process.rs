//! Child processes that never outlive the tests, and the relay binary as one of them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};

type Job = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts a program that the kernel kills when this process ends, however it ends.
///
/// The signal is bound to the *thread* that starts the program, so one thread that lives as long as the process
/// starts them all: a test's own threads are gone before its servers should be.
///
/// # Errors
/// When `setpriv` (util-linux) or the program cannot be started.
pub fn spawn(command: Command) -> io::Result<Child> {
    static SPAWNER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (jobs, queue) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, answer) in queue {
                // The receiver is waiting in this very function; if its thread is gone nobody wants the child.
                let _ = answer.send(command.spawn());
            }
        });
        jobs
    });
    let (answer, child) = mpsc::channel();
    spawner.send((command, answer)).map_err(io::Error::other)?;
    child.recv().map_err(io::Error::other)?
}

/// A command that runs `program` under `setpriv` so that it dies with its parent.
#[must_use]
pub fn bound(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Polls `ready` until it says yes, or fails with what was waited for.
///
/// # Errors
/// When the time is over.
pub fn wait_until(what: &str, at_most: Duration, mut ready: impl FnMut() -> bool) -> anyhow::Result<()> {
    let end = Instant::now() + at_most;
    while !ready() {
        ensure!(Instant::now() < end, "waited {at_most:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The `outbox` binary to test: `OUTBOX_BIN`, or the one beside the test binaries.
///
/// # Errors
/// When there is none; the text says how to build it.
pub fn outbox_bin() -> anyhow::Result<PathBuf> {
    built("outbox", "OUTBOX_BIN", "cargo build -p outbox-relay --features scripted-sink")
}

/// The `orders` binary of the example: `OUTBOX_ORDERS_BIN`, or the one beside the test binaries.
///
/// # Errors
/// When there is none; the text says how to build it.
pub fn orders_bin() -> anyhow::Result<PathBuf> {
    built("orders", "OUTBOX_ORDERS_BIN", "cargo build -p orders")
}

/// CPU time that these processes have used, and those of their children that have ended, to the kernel's tick.
///
/// # Errors
/// When a figure cannot be read.
pub fn cpu_time(pids: &[Pid]) -> anyhow::Result<Duration> {
    let mut ticks = 0;
    for pid in pids {
        // One that has ended meanwhile counts at its parent.
        let Ok(stat) = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())) else { continue };
        let (_, fields) = stat.rsplit_once(')').context("no name in /proc/…/stat")?;
        // utime, stime, cutime, cstime
        for field in fields.split_whitespace().skip(11).take(4) {
            ticks += field.parse::<u64>()?;
        }
    }
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// The library that changes what a program takes for the time, where it is installed.
#[must_use]
pub fn fake_clock() -> Option<PathBuf> {
    let libraries = fs::read_dir("/usr/lib").ok()?.flatten();
    libraries
        .map(|directory| directory.path().join("faketime/libfaketimeMT.so.1"))
        .find(|library| library.exists())
}

fn built(name: &str, variable: &str, build: &str) -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        return Ok(path.into());
    }
    let exe = std::env::current_exe()?;
    let path = exe.ancestors().nth(2).context("the test binary lies in no target directory")?.join(name);
    ensure!(path.exists(), "no {name} at {}: build it with `{build}`, or set {variable}", path.display());
    Ok(path)
}

/// A running `outbox` process with its output captured in a file.
#[derive(Debug)]
pub struct Relay {
    child: Child,
    log: PathBuf,
}

impl Relay {
    /// Runs `outbox --config CONFIG ARGS…`; both output streams go to `log`. `RUST_LOG` is passed on, `OUTBOX_*` are not.
    ///
    /// # Errors
    /// When there is no binary or it cannot be started.
    pub fn start(config: &Path, args: &[&str], log: &Path) -> anyhow::Result<Self> {
        let mut command = bound(outbox_bin()?);
        command.arg("--config").arg(config).args(args);
        Self::run(command, log)
    }

    /// The same with a wall clock that is so many seconds off; the monotonic one is right.
    ///
    /// # Errors
    /// The same, and when there is no [`fake_clock`].
    pub fn start_with_clock(config: &Path, args: &[&str], log: &Path, off: i32) -> anyhow::Result<Self> {
        let library =
            fake_clock().context("libfaketime is not installed (Debian: apt-get install faketime)")?;
        let mut command = bound(outbox_bin()?);
        command.env("LD_PRELOAD", library).env("FAKETIME", format!("{off:+}"));
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        command.arg("--config").arg(config).args(args);
        Self::run(command, log)
    }

    /// Runs another program in the same way: `PROGRAM ARGS…`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_program(program: &Path, args: &[&str], log: &Path) -> anyhow::Result<Self> {
        let mut command = bound(program);
        command.args(args);
        Self::run(command, log)
    }

    fn run(mut command: Command, log: &Path) -> anyhow::Result<Self> {
        let out = File::options().create(true).append(true).open(log)?;
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("OUTBOX_") {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let child = spawn(command).context("cannot start the program")?;
        Ok(Self { child, log: log.to_owned() })
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything it has written so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // The process may have ended meanwhile; whoever cares looks at its exit status.
        let _ = pid.map(|pid| kill_process(pid, signal));
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }

    /// SIGSTOP: everything it holds stays held while time goes on.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// SIGTERM: the polite end.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// The exit status, if it has ended.
    ///
    /// # Errors
    /// When the process cannot be waited for.
    pub fn try_status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// With the log in the text, when it has not ended in time.
    pub fn wait(&mut self, at_most: Duration) -> anyhow::Result<ExitStatus> {
        let mut status = None;
        let ended = wait_until("the relay's end", at_most, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        ended.with_context(|| self.log())?;
        status.context("ended without a status")
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.kill();
    }
}
