//! SQLite beside an application: how long a small transaction every 10 ms waits, alone and while the relay drains.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use sqlx::{Connection, SqliteConnection};

use crate::drain::{binary, fill_sqlite, open_sqlite, outbox, write_config};
use crate::engine::{Engine, Server};
use crate::workload::{Summary, Workload, percentile};

const EVERY: Duration = Duration::from_millis(10);
const GIVE_UP: Duration = Duration::from_secs(600);

/// Waits of the application's transactions in milliseconds, and how long the phase took.
struct Phase {
    waits_ms: Vec<f64>,
    took: Duration,
}

/// Measures and prints.
pub(crate) async fn run(work: Workload) -> Result<()> {
    let server = Server::start(Engine::Sqlite)?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..work.runs {
        let (without, with) = round(&server, &work).await?;
        alone.push(without);
        beside.push(with);
    }
    println!("SQLite, an application that commits every {} ms, {} runs", EVERY.as_millis(), work.runs);
    print_phase("alone", &alone);
    print_phase("with relay", &beside);
    let rate =
        Summary::of(beside.iter().map(|phase| f64::from(work.rows) / phase.took.as_secs_f64()).collect());
    println!(
        "  the relay drained {} rows at {:.0}/s ({:.0} to {:.0})",
        work.rows, rate.median, rate.min, rate.max
    );
    Ok(())
}

fn print_phase(name: &str, phases: &[Phase]) {
    let of =
        |pick: fn(&[f64]) -> f64| Summary::of(phases.iter().map(|phase| pick(&phase.waits_ms)).collect());
    let show =
        |summary: &Summary| format!("{:.2} ({:.2} to {:.2})", summary.median, summary.min, summary.max);
    println!(
        "  {name:<10} wait in ms, median of runs: p50 {}  p99 {}  max {}",
        show(&of(|waits| percentile(waits, 0.5))),
        show(&of(|waits| percentile(waits, 0.99))),
        show(&of(|waits| percentile(waits, 1.0)))
    );
}

async fn round(server: &Server, work: &Workload) -> Result<(Phase, Phase)> {
    let database = server.fresh_database().await?;
    let directory = tempfile::tempdir()?;
    let config = write_config(directory.path(), &database.url, work, false)?;
    outbox(&config, &["migrate", "up"])?;
    fill_sqlite(&database.url, work).await?;
    let mut db = open_sqlite(&database.url).await?;
    sqlx::raw_sql("CREATE TABLE app (n INTEGER PRIMARY KEY, note TEXT)").execute(&mut db).await?;

    let alone_until = Instant::now() + Duration::from_secs(10);
    let alone = commit_while(&mut db, |_| Ok(Instant::now() < alone_until)).await?;
    let mut relay = start_relay(&config)?;
    let beside = commit_while(&mut db, |elapsed| still_draining(&mut relay, elapsed)).await?;
    Ok((alone, beside))
}

fn start_relay(config: &std::path::Path) -> Result<Child> {
    let command = &mut Command::new(binary()?);
    command.arg("--config").arg(config).args(["run", "--once"]).env("RUST_LOG", "warn").stdout(Stdio::null());
    Ok(command.spawn()?)
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
