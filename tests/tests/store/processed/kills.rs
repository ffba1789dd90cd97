//! Consumer processes that are killed between an event's effect and its commit.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Stdio};

use outbox_tests::process::{bound, spawn};
use tokio::task::JoinSet;

use super::client::{Base, Library};

/// Killed when effect and mark are done and not committed.
const KILLS: usize = 200;
/// Killed with the commit on its way.
const KILLS_AROUND_COMMIT: usize = 40;

struct Consumer {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Consumer {
    fn start(base: &Base) -> Self {
        let mut command = bound(env!("CARGO_BIN_EXE_once-consumer"));
        command.arg(base.url()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn(command).unwrap();
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, said }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn hear(&mut self) -> String {
        self.said.next().expect("an answer: the consumer ended").unwrap()
    }

    /// Delivers an event and returns what it is to this consumer, which then commits.
    fn process(&mut self, id: &str) -> String {
        self.tell(id);
        let outcome = self.hear();
        self.tell("commit");
        assert_eq!(self.hear(), "committed");
        outcome
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_killed_between_effect_and_commit_leaves_one_effect() {
    let mut all = JoinSet::new();
    for base in Base::all().await {
        all.spawn_blocking(move || {
            kill_many(&base);
            base
        });
    }
    let total = (KILLS + KILLS_AROUND_COMMIT) as i64;
    for base in all.join_all().await {
        let mut client = base.connect(Library::Sqlx).await;
        assert_eq!(client.number("SELECT count(*) FROM effects").await, total);
        assert_eq!(client.number("SELECT count(DISTINCT event_id) FROM effects").await, total);
        assert_eq!(client.number("SELECT count(*) FROM processed_events").await, total);
    }
}

fn kill_many(base: &Base) {
    let mut survivor = Consumer::start(base);
    for n in 0..KILLS + KILLS_AROUND_COMMIT {
        let id = format!("event-{n}");
        let mut victim = Consumer::start(base);
        victim.tell(&id);
        assert_eq!(victim.hear(), "first");
        let commits = n >= KILLS;
        if commits {
            victim.tell("commit");
        }
        victim.kill();
        // The broker delivers again what was not acknowledged, and once more for good measure.
        let redelivered = survivor.process(&id);
        assert!(commits || redelivered == "first", "{id}: the mark outlived its effect");
        assert_eq!(survivor.process(&id), "duplicate");
    }
    survivor.kill();
}
