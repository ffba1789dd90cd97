//! A snapshot that somebody holds on PostgreSQL, with a transaction id: vacuum can remove nothing that was deleted since.
//!
//! One run first goes without it and then with it for long. Compared are the last seconds of both: the rate at which a
//! backlog that stays is drained, and the latency at a fixed rate.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use sqlx::{Connection, PgConnection};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::engine::{Database, Engine, Server};
use crate::in_process;
use crate::producers::{Counter, Log, Producers};
use crate::report::Report;
use crate::workload::percentile;

/// Rows that are inserted at once.
const CHUNK: u64 = 1_000;

/// How long and how much.
#[derive(Args, Clone, Debug)]
pub(crate) struct Load {
    /// Seconds that the snapshot is held for, in each part.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Seconds without it before, and of the ends that are compared.
    #[arg(long, default_value_t = 30)]
    end: u64,
    /// Rows that wait at any time.
    #[arg(long, default_value_t = 20_000)]
    backlog: u64,
    /// One in so many events is refused once and tried again; 0 for none.
    #[arg(long, default_value_t = 33)]
    refused: u64,
    /// Events a second of the second part; 0 leaves it out.
    #[arg(long, default_value_t = 2_000)]
    rate: u32,
    /// Payload size in bytes.
    #[arg(long, default_value_t = 500)]
    payload: usize,
    /// Keys.
    #[arg(long, default_value_t = 5_000)]
    keys: u32,
}

/// Measures.
pub(crate) async fn run(load: Load) -> Result<Report> {
    let server = Server::start(Engine::Postgres)?;
    let mut report = Report::new(format!(
        "Postgres: a snapshot held for {} s, {} rows of {} B waiting over {} keys, {}; the last {} s",
        load.seconds,
        load.backlog,
        load.payload,
        load.keys,
        if load.refused == 0 {
            "none refused".to_owned()
        } else {
            format!("1 in {} refused once", load.refused)
        },
        load.end
    ));
    let [free, held] = backlog(&server, &load).await?;
    report.ratio("drain: held / free", &[held], &[free]);
    report.line("drain: free", "events/s", vec![free]);
    report.line("drain: held", "events/s", vec![held]);
    if load.rate > 0 {
        let [free, held] = latency(&server, &load).await?;
        let at = |share| (percentile(&free, share), percentile(&held, share));
        for (name, (free, held)) in [("p50", at(0.5)), ("p99", at(0.99))] {
            report.ratio(format!("{name} at {}/s: held / free", load.rate), &[held], &[free]);
            report.line(format!("{name} at {}/s: free", load.rate), "ms", vec![free]);
            report.line(format!("{name} at {}/s: held", load.rate), "ms", vec![held]);
        }
    }
    Ok(report)
}

/// A session that holds a snapshot and a transaction id until it is dropped.
async fn pin(database: &Database) -> Result<PgConnection> {
    let mut db = PgConnection::connect(&database.url).await?;
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ").execute(&mut db).await?;
    sqlx::raw_sql("SELECT pg_current_xact_id()").execute(&mut db).await?;
    Ok(db)
}

/// Rates of the ends without and with the snapshot.
async fn backlog(server: &Server, load: &Load) -> Result<[f64; 2]> {
    let database = server.fresh_database().await?;
    let store = in_process::open(server.engine(), &database).await?;
    let sink = Arc::new(Counter::new(load.refused));
    let retry = Duration::from_millis(500);
    let relay = in_process::relay(&store, 500, retry, Arc::clone(&sink) as _)?;
    let stop = CancellationToken::new();
    let relay = tokio::spawn(relay.run(stop.clone()));
    let producer =
        tokio::spawn(keep_backlog(database.url.clone(), load.clone(), Arc::clone(&sink), stop.clone()));
    sleep(Duration::from_secs(load.end)).await;
    let free = sink.rate_of(load.end).await;
    eprintln!("free: {free:.0}/s");
    let pinned = pin(&database).await?;
    let (begun, mut held) = (Instant::now(), 0.0);
    while begun.elapsed() < Duration::from_secs(load.seconds) {
        held = sink.rate_of(load.end).await;
        eprintln!("held for {} s: {held:.0}/s", begun.elapsed().as_secs());
    }
    stop.cancel();
    producer.await??;
    relay.await??;
    pinned.close().await?;
    store.close().await;
    Ok([free, held])
}

/// Inserts as soon as fewer rows wait.
async fn keep_backlog(url: String, load: Load, sink: Arc<Counter>, stop: CancellationToken) -> Result<()> {
    let mut db = PgConnection::connect(&url).await?;
    let insert = "INSERT INTO outbox_tasks (aggregate_type, aggregate_id, payload) \
        SELECT 'Order', (i * 7919 % $3)::text, json_build_object('n', i, 'pad', repeat('x', $4)) \
        FROM generate_series($1::bigint, $2::bigint) i";
    let pad = i32::try_from(load.payload.saturating_sub(24))?;
    let mut inserted = 0;
    while !stop.is_cancelled() {
        if inserted - sink.delivered() >= load.backlog {
            sleep(Duration::from_millis(2)).await;
            continue;
        }
        let (first, last) = (i64::try_from(inserted + 1)?, i64::try_from(inserted + CHUNK)?);
        sqlx::query(insert)
            .bind(first)
            .bind(last)
            .bind(i64::from(load.keys))
            .bind(pad)
            .execute(&mut db)
            .await?;
        inserted += CHUNK;
    }
    Ok(())
}

/// Latencies of the ends without and with the snapshot, in milliseconds, sorted.
async fn latency(server: &Server, load: &Load) -> Result<[Vec<f64>; 2]> {
    let database = server.fresh_database().await?;
    let store = in_process::open(server.engine(), &database).await?;
    let log = Arc::new(Log::default());
    let relay = in_process::relay(&store, 500, Duration::from_secs(1), Arc::clone(&log) as _)?;
    let (stop, shutdown) = (CancellationToken::new(), CancellationToken::new());
    let relay = tokio::spawn(relay.run(shutdown.clone()));
    let producers = Producers {
        engine: Engine::Postgres,
        url: database.url.clone(),
        connections: 8,
        keys: load.keys,
        payload: format!("{{\"pad\":\"{}\"}}", "x".repeat(load.payload.saturating_sub(10))),
        rate: Some(load.rate),
    };
    let running = tokio::spawn(producers.run(stop.clone(), Arc::clone(&log)));
    let end = Duration::from_secs(load.end);
    sleep(end).await;
    let free = log.end_of(end).await;
    let pinned = pin(&database).await?;
    sleep(Duration::from_secs(load.seconds).saturating_sub(end)).await;
    let held = log.end_of(end).await;
    stop.cancel();
    running.await??;
    shutdown.cancel();
    relay.await??;
    pinned.close().await?;
    store.close().await;
    Ok([free, held])
}

impl Log {
    /// Latencies of what is committed from now on for so long.
    async fn end_of(&self, end: Duration) -> Vec<f64> {
        let since = Instant::now();
        sleep(end).await;
        self.latencies_ms(since)
    }
}
