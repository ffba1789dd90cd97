//! A directory to run the binary in, and what it answered.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor};
use tempfile::TempDir;

/// More than anything here takes: a test that waits this long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A directory of its own, with no configuration but what the test writes.
pub(crate) struct Bench {
    pub(crate) directory: TempDir,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn good(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.stdout
    }

    /// The one line that a failed command says, without its `error: `.
    #[track_caller]
    pub(crate) fn error(&self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        let lines: Vec<&str> = self.stderr.lines().collect();
        assert_eq!(lines.len(), 1, "{self:?}");
        lines[0].strip_prefix("error: ").unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }

    #[track_caller]
    pub(crate) fn says(&self, code: i32, words: &[&str]) {
        let error = self.error(code);
        for word in words {
            assert!(error.contains(word), "{word:?} is missing in: {error}");
        }
    }
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self { directory: TempDir::new().unwrap() }
    }

    /// With a migrated database, and a queue that delivers into `events.jsonl`.
    pub(crate) fn migrated() -> Self {
        let bench = Self::new();
        bench.write(
            "outbox.toml",
            "queues.default.sink = \"out\"\nhttp.listen = \"off\"\n[sinks.out]\ntype = \"file\"\npath = \"events.jsonl\"\n",
        );
        bench.run(&["migrate", "up"]).good();
        bench
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
        let ours = std::env::vars_os()
            .map(|(key, _)| key)
            .filter(|key| key.to_string_lossy().starts_with("OUTBOX_"));
        for key in ours {
            command.env_remove(key);
        }
        command.env_remove("RUST_LOG").current_dir(self.directory.path()).args(arguments);
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Answer {
        answer(&self.command(arguments).stdin(Stdio::null()).output().unwrap())
    }

    pub(crate) fn run_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Answer {
        let mut command = self.command(arguments);
        answer(&command.envs(environment.iter().copied()).stdin(Stdio::null()).output().unwrap())
    }

    pub(crate) fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Answer {
        let mut command = self.command(arguments);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        answer(&child.wait_with_output().unwrap())
    }

    /// Starts a command that goes on.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        let mut command = self.command(arguments);
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = lines(child.stdout.take().unwrap());
        let stderr = error_lines(child.stderr.take().unwrap());
        Running { child, stdout, stderr }
    }

    /// Runs SQL in the database that the commands use.
    pub(crate) fn sql(&self, sql: &'static str) {
        self.sql_in("outbox.db", sql);
    }

    pub(crate) fn sql_in(&self, file: &str, sql: &'static str) {
        let options = SqliteConnectOptions::new().filename(self.path(file)).create_if_missing(true);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut connection = options.connect().await.unwrap();
            connection.execute(sqlx::raw_sql(sql)).await.unwrap();
            connection.close().await.unwrap();
        });
    }

    /// Enqueues an event and gives its id.
    pub(crate) fn enqueue(&self, id: &str) -> String {
        let arguments = [
            "enqueue",
            "--aggregate-type",
            "Order",
            "--aggregate-id",
            id,
            "--event-type",
            "OrderCreated",
            "--payload",
            "{}",
        ];
        self.run(&arguments).good().trim().to_owned()
    }

    pub(crate) fn delivered(&self) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.path("events.jsonl")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// What a command prints with `--format json`.
    pub(crate) fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let arguments = [arguments, &["--format", "json"]].concat();
        serde_json::from_str(&self.run(&arguments).stdout).unwrap()
    }
}

fn answer(output: &Output) -> Answer {
    Answer {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout.clone()).unwrap(),
        stderr: String::from_utf8(output.stderr.clone()).unwrap(),
    }
}

/// A command that is running; killed when the test is over.
pub(crate) struct Running {
    child: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

impl Running {
    /// The next line on standard output that contains a word.
    #[track_caller]
    pub(crate) fn prints(&self, word: &str) -> String {
        wait_for(&self.stdout, word)
    }

    /// The next line on standard error that contains a word.
    #[track_caller]
    pub(crate) fn logs(&self, word: &str) -> String {
        wait_for(&self.stderr, word)
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Its exit code, and what it logged that no one has waited for.
    #[track_caller]
    pub(crate) fn ends(mut self) -> (i32, Vec<String>) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status.code().unwrap_or(-1), self.stderr.iter().collect());
            }
            assert!(
                Instant::now() < deadline,
                "does not end: {:?}",
                self.stderr.try_iter().collect::<Vec<_>>()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(stdout: ChildStdout) -> Receiver<String> {
    pump(BufReader::new(stdout))
}

fn error_lines(stderr: ChildStderr) -> Receiver<String> {
    pump(BufReader::new(stderr))
}

/// Reads on a thread, so that a test can give up waiting.
fn pump(mut reader: impl BufRead + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|length| length > 0) {
            if sender.send(line.trim_end().to_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    receiver
}

#[track_caller]
fn wait_for(lines: &Receiver<String>, word: &str) -> String {
    let deadline = Instant::now() + PATIENCE;
    let mut seen = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match lines.recv_timeout(left) {
            Ok(line) if line.contains(word) => return line,
            Ok(line) => seen.push(line),
            Err(_) => panic!("no line with {word:?} after:\n{}", seen.join("\n")),
        }
    }
}
