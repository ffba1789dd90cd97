//! A backlog of which some events are refused once and tried again, beside the same backlog without a refusal.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tokio_util::sync::CancellationToken;

use crate::drain::{fill_postgres, fill_sqlite};
use crate::engine::{Engine, Server};
use crate::in_process;
use crate::producers::Counter;
use crate::report::Report;
use crate::workload::Workload;

/// Each refused event is due again after this time: not what is measured.
const RETRY: Duration = Duration::from_millis(20);

/// Measures.
pub(crate) async fn run(engine: Engine, work: Workload, one_in: u64) -> Result<Report> {
    let server = Server::start(engine)?;
    let (mut none, mut some) = (Vec::new(), Vec::new());
    for run in 0..work.runs {
        none.push(drain(&server, &work, 0).await?);
        some.push(drain(&server, &work, one_in).await?);
        eprintln!("run {} of {}", run + 1, work.runs);
    }
    let mut report = Report::new(format!(
        "{engine:?}: {} rows of {} B over {} keys, batch {}, 1 in {one_in} refused once, {} runs",
        work.rows, work.payload, work.keys, work.batch, work.runs
    ));
    report.ratio("some refused / none", &some, &none);
    report.line("none refused", "events/s", none);
    report.line("some refused", "events/s", some);
    Ok(report)
}

/// Events a second until all are delivered.
async fn drain(server: &Server, work: &Workload, refused: u64) -> Result<f64> {
    let database = server.fresh_database().await?;
    let store = in_process::open(server.engine(), &database).await?;
    match server.engine() {
        Engine::Postgres => fill_postgres(&database.url, work).await?,
        Engine::Sqlite => fill_sqlite(&database.url, work).await?,
    }
    let sink = Arc::new(Counter::new(refused));
    let relay = in_process::relay(&store, work.batch, RETRY, Arc::clone(&sink) as _)?;
    let shutdown = CancellationToken::new();
    let start = Instant::now();
    let running = tokio::spawn(relay.run(shutdown.clone()));
    while sink.delivered() < u64::from(work.rows) {
        ensure!(start.elapsed() < Duration::from_secs(600), "not drained");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let elapsed = start.elapsed();
    shutdown.cancel();
    running.await??;
    store.close().await;
    Ok(f64::from(work.rows) / elapsed.as_secs_f64())
}
