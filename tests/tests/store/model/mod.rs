//! Random interleavings of what applications, relays, clocks and operators do, against a small reference model.
//!
//! `OUTBOX_TEST_CASES` sets how many cases each engine runs, `OUTBOX_TEST_SEED` where they begin: a failure prints the
//! seed that repeats it.

mod case;
mod reference;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox_store::Store;
use outbox_store::contract::Harness;
use outbox_tests::harness::{PostgresHarness, SqliteHarness};
use outbox_tests::postgres::shared;

/// Relays of a case.
const RELAYS: usize = 3;
/// Databases that cases run on at once, per engine.
const WORKERS: u64 = 2;

#[async_trait]
trait Database: Harness {
    async fn clear(&self);
}

#[async_trait]
impl Database for PostgresHarness {
    async fn clear(&self) {
        PostgresHarness::clear(self).await;
    }
}

#[async_trait]
impl Database for SqliteHarness {
    async fn clear(&self) {
        SqliteHarness::clear(self).await;
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Runs cases one after the other on one database.
async fn work(db: Arc<dyn Database>, seeds: impl Iterator<Item = u64>) {
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..RELAYS {
        stores.push(db.store().await);
    }
    for seed in seeds {
        db.clear().await;
        let log = Arc::new(Mutex::new(Vec::new()));
        let harness: Arc<dyn Harness> = Arc::clone(&db) as _;
        let (stores, steps) = (stores.clone(), Arc::clone(&log));
        let case = tokio::spawn(async move { case::run(harness, &stores, seed, &steps).await });
        if let Err(error) = case.await {
            let log = log.lock().map_or_else(|log| log.into_inner().join("\n"), |log| log.join("\n"));
            panic!("{error}\n{log}\nAgain with OUTBOX_TEST_SEED={seed} OUTBOX_TEST_CASES=1");
        }
    }
}

/// Splits the cases among the databases; returns how many ran and for how long.
async fn run(databases: Vec<Arc<dyn Database>>, default_cases: u64) -> (u64, Duration) {
    let cases = variable("OUTBOX_TEST_CASES").unwrap_or(default_cases);
    let first = variable("OUTBOX_TEST_SEED").unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let begin = Instant::now();
    let workers = databases.len();
    let running: Vec<_> = (first..)
        .zip(databases)
        .map(|(from, db)| tokio::spawn(work(db, (from..first + cases).step_by(workers))))
        .collect();
    for worker in running {
        if let Err(error) = worker.await {
            std::panic::resume_unwind(error.into_panic());
        }
    }
    (cases, begin.elapsed())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_behaves_as_the_model() {
    let mut databases: Vec<Arc<dyn Database>> = Vec::new();
    for _ in 0..WORKERS {
        databases.push(Arc::new(SqliteHarness::in_memory_if_possible().await));
    }
    let (cases, took) = run(databases, 1500).await;
    report("sqlite", cases, took);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_behaves_as_the_model() {
    for server in shared() {
        let mut databases: Vec<Arc<dyn Database>> = Vec::new();
        for _ in 0..WORKERS {
            databases.push(Arc::new(PostgresHarness::new(server).await));
        }
        let (cases, took) = run(databases, 700).await;
        report("postgres", cases, took);
    }
}

#[allow(clippy::print_stderr, reason = "shown by --nocapture: how much was tested")]
fn report(engine: &str, cases: u64, took: Duration) {
    eprintln!("{engine}: {cases} cases in {took:.1?}");
}
