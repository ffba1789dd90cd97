//! How soon an idle relay delivers one event, and what it costs while nothing comes.
//!
//! Latency is the time from the moment the application's commit has returned to the sink's answer; events come one at a
//! time, far enough apart for the relay to be idle again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use outbox_sinks::{Answer, Message, Sink};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::engine::{Engine, Server};
use crate::in_process;
use crate::producers::Writer;
use crate::report::Report;
use crate::workload::percentile;

/// Apart by at least this much, and at most twice as much.
const GAP: Duration = Duration::from_millis(20);
/// How long nothing comes.
const QUIET: Duration = Duration::from_secs(10);
const GIVE_UP: Duration = Duration::from_secs(30);

/// Tells when it has taken an event.
struct Probe {
    taken: mpsc::UnboundedSender<Instant>,
}

#[async_trait]
impl Sink for Probe {
    fn kind(&self) -> &'static str {
        "probe"
    }

    fn needs_destination(&self) -> bool {
        false
    }

    async fn publish(&self, batch: &[Message<'_>], _deadline: tokio::time::Instant) -> Vec<Answer> {
        batch
            .iter()
            .map(|_| {
                let _ = self.taken.send(Instant::now());
                Answer::Acked { receipt: None }
            })
            .collect()
    }

    async fn check(&self, _deadline: tokio::time::Instant) -> Result<String, String> {
        Ok("a probe".to_owned())
    }

    async fn close(&self) {}
}

/// What one round saw.
struct Round {
    /// Milliseconds, sorted.
    latencies: Vec<f64>,
    /// Share of a core while nothing came.
    cpu: f64,
    /// Statements a second on the server while nothing came.
    statements: Option<f64>,
}

/// Measures.
pub(crate) async fn run(engine: Engine, events: u32, runs: u32) -> Result<Report> {
    let server = Server::start(engine)?;
    let mut rounds = Vec::new();
    for _ in 0..runs {
        rounds.push(round(&server, events).await?);
    }
    let mut report =
        Report::new(format!("{engine:?}: {events} events {GAP:?} to {:?} apart, {runs} runs", 2 * GAP));
    for (name, share) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
        let latencies = rounds.iter().map(|round| percentile(&round.latencies, share));
        report.line(format!("commit to acknowledgement: {name}"), "ms", latencies.collect());
    }
    report.line("idle: CPU", "% of a core", rounds.iter().map(|round| round.cpu * 100.0).collect());
    report.line("idle", "statements/s", rounds.iter().filter_map(|round| round.statements).collect());
    Ok(report)
}

async fn round(server: &Server, events: u32) -> Result<Round> {
    let database = server.fresh_database().await?;
    let store = in_process::open(server.engine(), &database).await?;
    let (taken, mut acks) = mpsc::unbounded_channel();
    let relay = in_process::relay(&store, 500, GIVE_UP, Arc::new(Probe { taken }))?;
    let shutdown = CancellationToken::new();
    let relay = tokio::spawn(relay.run(shutdown.clone()));
    let mut writer = Writer::connect(server.engine(), &database.url).await?;

    let mut latencies = Vec::new();
    for _ in 0..events {
        sleep(GAP.mul_f64(rand::random_range(1.0..2.0))).await;
        writer.insert(Uuid::now_v7(), 1, "{}").await?;
        let committed = Instant::now();
        let ack = timeout(GIVE_UP, acks.recv()).await?.context("the relay is gone")?;
        latencies.push(ack.saturating_duration_since(committed).as_secs_f64() * 1000.0);
    }
    latencies.sort_by(f64::total_cmp);
    sleep(Duration::from_secs(2)).await;
    let (cpu, statements) = quiet(&mut writer).await?;
    shutdown.cancel();
    relay.await??;
    store.close().await;
    Ok(Round { latencies, cpu, statements })
}

/// Cost while nothing comes.
async fn quiet(writer: &mut Writer) -> Result<(f64, Option<f64>)> {
    let (cpu, transactions) = (process_cpu()?, writer.transactions().await?);
    sleep(QUIET).await;
    let seconds = QUIET.as_secs_f64();
    let cpu = (process_cpu()? - cpu).as_secs_f64() / seconds;
    let after = writer.transactions().await?;
    let statements = transactions.zip(after).map(|(before, after)| (after - before) as f64 / seconds);
    Ok((cpu, statements))
}

/// CPU time that this process has used.
fn process_cpu() -> Result<Duration> {
    let mut nanos = 0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        // A thread may end meanwhile.
        let Ok(stat) = std::fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        nanos += stat.split(' ').next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    }
    ensure!(nanos > 0, "the kernel keeps no schedstat");
    Ok(Duration::from_nanos(nanos))
}
