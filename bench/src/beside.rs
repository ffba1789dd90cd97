//! SQLite beside an application: how long a small transaction every 10 ms waits, alone and while the relay drains.

use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use sqlx::{Connection, SqliteConnection};

use crate::drain::{command, fill_sqlite, null_config, open_sqlite, outbox};
use crate::engine::{Engine, Server};
use crate::report::Report;
use crate::workload::{Workload, percentile};

const EVERY: Duration = Duration::from_millis(10);
const GIVE_UP: Duration = Duration::from_secs(600);

/// Waits of the application's transactions in milliseconds, and how long the phase took.
struct Phase {
    waits_ms: Vec<f64>,
    took: Duration,
}

/// Measures.
pub(crate) async fn run(work: Workload) -> Result<Report> {
    let server = Server::start(Engine::Sqlite)?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..work.runs {
        let (without, with) = round(&server, &work).await?;
        alone.push(without);
        beside.push(with);
    }
    let mut report = Report::new(format!(
        "SQLite: an application that commits every {} ms, {} runs",
        EVERY.as_millis(),
        work.runs
    ));
    describe(&mut report, "alone", &alone);
    describe(&mut report, "beside the relay", &beside);
    let rates = beside.iter().map(|phase| f64::from(work.rows) / phase.took.as_secs_f64());
    report.line(format!("the relay's drain of {} rows", work.rows), "events/s", rates.collect());
    Ok(report)
}

fn describe(report: &mut Report, name: &str, phases: &[Phase]) {
    for (share, label) in [(0.5, "p50"), (0.99, "p99"), (1.0, "max")] {
        let waits = phases.iter().map(|phase| percentile(&phase.waits_ms, share));
        report.line(format!("{name}: {label} of a commit"), "ms", waits.collect());
    }
}

async fn round(server: &Server, work: &Workload) -> Result<(Phase, Phase)> {
    let database = server.fresh_database().await?;
    let directory = tempfile::tempdir()?;
    let config = null_config(directory.path(), &database.url, work)?;
    outbox(&config, &["migrate", "up"])?;
    fill_sqlite(&database.url, work).await?;
    let mut db = open_sqlite(&database.url).await?;
    sqlx::raw_sql("CREATE TABLE app (n INTEGER PRIMARY KEY, note TEXT)").execute(&mut db).await?;

    let alone_until = Instant::now() + Duration::from_secs(10);
    let alone = commit_while(&mut db, |_| Ok(Instant::now() < alone_until)).await?;
    let mut relay = command(&config, &["run", "--once"])?.spawn()?;
    let beside = commit_while(&mut db, |elapsed| still_draining(&mut relay, elapsed)).await?;
    Ok((alone, beside))
}

fn still_draining(relay: &mut Child, elapsed: Duration) -> Result<bool> {
    match relay.try_wait()? {
        Some(status) if status.success() => Ok(false),
        Some(status) => bail!("the relay ended with {status}"),
        None if elapsed > GIVE_UP => bail!("the relay did not drain within {GIVE_UP:?}"),
        None => Ok(true),
    }
}

async fn commit_while(
    db: &mut SqliteConnection,
    mut go_on: impl FnMut(Duration) -> Result<bool>,
) -> Result<Phase> {
    let start = Instant::now();
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut waits_ms = Vec::new();
    while go_on(start.elapsed())? {
        ticks.tick().await;
        let begun = Instant::now();
        let mut tx = db.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::query("INSERT INTO app (note) VALUES ('a small business row')").execute(&mut *tx).await?;
        tx.commit().await?;
        waits_ms.push(begun.elapsed().as_secs_f64() * 1000.0);
    }
    let took = start.elapsed();
    waits_ms.sort_by(f64::total_cmp);
    Ok(Phase { waits_ms, took })
}
