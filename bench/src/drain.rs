//! Drain of a backlog to the null sink by the relay's own binary, beside the textbook loop, in interleaved runs.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use sqlx::{Connection, PgConnection, SqliteConnection};

use crate::engine::{Engine, Server};
use crate::textbook;
use crate::workload::{Summary, Workload};

/// Rates in events a second, one a run.
struct Rates {
    relay: Vec<f64>,
    textbook: Vec<f64>,
}

/// Measures and prints.
pub(crate) async fn run(engine: Engine, work: Workload, keep: bool) -> Result<()> {
    let server = Server::start(engine)?;
    let mut rates = Rates { relay: Vec::new(), textbook: Vec::new() };
    for round in 0..work.runs {
        rates.relay.push(relay_round(&server, &work, keep).await?);
        rates.textbook.push(textbook_round(&server, &work).await?);
        eprintln!(
            "run {}: relay {:.0}/s, textbook {:.0}/s",
            round + 1,
            rates.relay[round as usize],
            rates.textbook[round as usize]
        );
    }
    report(engine, &work, keep, rates);
    Ok(())
}

fn report(engine: Engine, work: &Workload, keep: bool, rates: Rates) {
    let (relay, textbook) = (Summary::of(rates.relay), Summary::of(rates.textbook));
    println!(
        "{engine:?}: {} rows of {} B over {} keys, batch {}, {}, {} runs",
        work.rows,
        work.payload,
        work.keys,
        work.batch,
        if keep { "keep" } else { "delete" },
        work.runs
    );
    for (name, summary) in [("relay", &relay), ("textbook", &textbook)] {
        println!("  {name:<10} median {:>8.0}/s  ({:.0} to {:.0})", summary.median, summary.min, summary.max);
    }
    println!("  relay / textbook = {:.2}", relay.median / textbook.median);
}

async fn relay_round(server: &Server, work: &Workload, keep: bool) -> Result<f64> {
    let database = server.fresh_database().await?;
    let directory = tempfile::tempdir()?;
    let config = write_config(directory.path(), &database.url, work, keep)?;
    outbox(&config, &["migrate", "up"])?;
    match server.engine() {
        Engine::Postgres => fill_postgres(&database.url, work).await?,
        Engine::Sqlite => fill_sqlite(&database.url, work).await?,
    }
    let start = Instant::now();
    outbox(&config, &["run", "--once"])?;
    Ok(f64::from(work.rows) / start.elapsed().as_secs_f64())
}

async fn textbook_round(server: &Server, work: &Workload) -> Result<f64> {
    let database = server.fresh_database().await?;
    let (start, drained) = match server.engine() {
        Engine::Postgres => {
            let mut db = PgConnection::connect(&database.url).await?;
            textbook::load_postgres(&mut db, work).await?;
            let start = Instant::now();
            (start, textbook::drain_postgres(&mut db, work.batch).await?)
        }
        Engine::Sqlite => {
            let mut db = open_sqlite(&database.url).await?;
            textbook::load_sqlite(&mut db, work).await?;
            let start = Instant::now();
            (start, textbook::drain_sqlite(&mut db, work.batch).await?)
        }
    };
    let elapsed = start.elapsed();
    ensure!(drained == u64::from(work.rows), "the textbook loop saw {drained} of {} rows", work.rows);
    Ok(f64::from(work.rows) / elapsed.as_secs_f64())
}

/// A configuration with one queue to the null sink; returns its path.
pub(crate) fn write_config(directory: &Path, url: &str, work: &Workload, keep: bool) -> Result<PathBuf> {
    let path = directory.join("outbox.toml");
    let published = if keep { "keep" } else { "delete" };
    let text = format!(
        "[store]\nurl = \"{url}\"\n[queues.default]\nsink = \"null\"\nbatch = {}\npublished = \"{published}\"\n\
         [sinks.null]\ntype = \"null\"\n[http]\nlisten = \"off\"\n",
        work.batch
    );
    std::fs::write(&path, text)?;
    Ok(path)
}

/// The relay's binary, built beside this one.
pub(crate) fn binary() -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("outbox");
    ensure!(path.exists(), "build the relay first: cargo build --release -p outbox-relay");
    Ok(path)
}

/// Runs a command of the relay to its end.
pub(crate) fn outbox(config: &Path, arguments: &[&str]) -> Result<()> {
    let status = std::process::Command::new(binary()?)
        .arg("--config")
        .arg(config)
        .args(arguments)
        .env("RUST_LOG", "warn")
        .stdout(std::process::Stdio::null())
        .status()
        .context("starting the relay")?;
    ensure!(status.success(), "outbox {arguments:?} ended with {status}");
    Ok(())
}

/// Opens a SQLite database as the relay sets it up.
pub(crate) async fn open_sqlite(url: &str) -> Result<SqliteConnection> {
    let options: sqlx::sqlite::SqliteConnectOptions = url.parse()?;
    let options = options
        .create_if_missing(true)
        .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
        .synchronous(sqlx::sqlite::SqliteSynchronous::Normal)
        .busy_timeout(std::time::Duration::from_secs(30));
    Ok(SqliteConnection::connect_with(&options).await?)
}

const FILL_POSTGRES: &str = "
INSERT INTO outbox_tasks (aggregate_type, aggregate_id, payload)
SELECT 'Order', (i::bigint * 7919 % $2)::text, json_build_object('n', i, 'pad', repeat('x', $3))
FROM generate_series(1, $1::int) i";

const FILL_SQLITE: &str = "
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
INSERT INTO outbox_tasks (id, aggregate_type, aggregate_id, payload)
SELECT printf('%08x-0000-4000-8000-%012x', i, i), 'Order', i * 7919 % ?2,
  json_object('n', i, 'pad', printf('%.*c', ?3, 'x'))
FROM n";

pub(crate) async fn fill_postgres(url: &str, work: &Workload) -> Result<()> {
    let mut db = PgConnection::connect(url).await?;
    sqlx::query(FILL_POSTGRES)
        .bind(i32::try_from(work.rows)?)
        .bind(i64::from(work.keys))
        .bind(i32::try_from(work.pad())?)
        .execute(&mut db)
        .await?;
    sqlx::raw_sql("VACUUM ANALYZE outbox_tasks").execute(&mut db).await?;
    Ok(())
}

pub(crate) async fn fill_sqlite(url: &str, work: &Workload) -> Result<()> {
    let mut db = open_sqlite(url).await?;
    sqlx::query(FILL_SQLITE)
        .bind(i64::from(work.rows))
        .bind(i64::from(work.keys))
        .bind(i64::from(work.pad()))
        .execute(&mut db)
        .await?;
    Ok(())
}
