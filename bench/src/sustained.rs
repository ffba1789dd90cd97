//! Producers and the relay together on one database.
//!
//! First as fast as the producers go, each on its own connection, with and without the relay's program beside them. Then
//! at fixed rates, whether or not the database keeps up, to a relay in this process: how soon events are delivered and
//! what backlog is left.

use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::drain::{command, null_config, unsettled};
use crate::engine::{Engine, Server};
use crate::in_process;
use crate::producers::{Log, Producers};
use crate::report::Report;
use crate::workload::{Workload, percentile};

const GIVE_UP: Duration = Duration::from_secs(300);

/// How much is produced.
#[derive(Args, Clone, Debug)]
pub(crate) struct Load {
    /// Connections that producers insert on.
    #[arg(long, default_value_t = 8)]
    connections: u32,
    /// Seconds of each phase.
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// Rates of the second part, events a second.
    #[arg(long, value_delimiter = ',', default_value = "500,1000,2000,4000")]
    rates: Vec<u32>,
    /// Payload size in bytes.
    #[arg(long, default_value_t = 500)]
    payload: usize,
    /// Keys.
    #[arg(long, default_value_t = 5_000)]
    keys: u32,
    /// Interleaved runs of each.
    #[arg(long, default_value_t = 3)]
    runs: u32,
}

/// What producers saw as fast as they went.
struct Free {
    rate: f64,
    waits_ms: Vec<f64>,
    /// Events that waited when the producers stopped, and the seconds until none did.
    backlog: f64,
    catch_up: f64,
}

/// What came of a fixed rate.
struct Rung {
    produced: f64,
    latencies_ms: Vec<f64>,
    backlog: f64,
}

/// Measures.
pub(crate) async fn run(engine: Engine, load: Load) -> Result<Report> {
    let server = Server::start(engine)?;
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    let mut ladder: Vec<Vec<Rung>> = load.rates.iter().map(|_| Vec::new()).collect();
    for run in 0..load.runs {
        alone.push(free(&server, &load, false).await?);
        beside.push(free(&server, &load, true).await?);
        for (rate, rungs) in load.rates.iter().zip(&mut ladder) {
            rungs.push(rung(&server, &load, *rate).await?);
        }
        eprintln!("run {} of {}", run + 1, load.runs);
    }
    let mut report = Report::new(format!(
        "{engine:?}: {} producers, one event of {} B a transaction over {} keys, {} s each, {} runs",
        load.connections, load.payload, load.keys, load.seconds, load.runs
    ));
    let rates = |phases: &[Free]| phases.iter().map(|phase| phase.rate).collect::<Vec<_>>();
    report.ratio("producers' rate beside the relay / alone", &rates(&beside), &rates(&alone));
    describe(&mut report, "alone", &alone);
    describe(&mut report, "beside the relay", &beside);
    report.line("beside the relay: backlog at the end", "events", beside.iter().map(|b| b.backlog).collect());
    report.line("beside the relay: caught up after", "s", beside.iter().map(|b| b.catch_up).collect());
    for (rate, rungs) in load.rates.iter().zip(ladder) {
        let name = |what: &str| format!("at {rate}/s: {what}");
        report.line(name("produced"), "events/s", rungs.iter().map(|rung| rung.produced).collect());
        for (share, label) in [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")] {
            let latencies = rungs.iter().map(|rung| percentile(&rung.latencies_ms, share));
            report.line(name(&format!("commit to acknowledgement, {label}")), "ms", latencies.collect());
        }
        report.line(name("backlog at the end"), "events", rungs.iter().map(|rung| rung.backlog).collect());
    }
    Ok(report)
}

fn describe(report: &mut Report, name: &str, phases: &[Free]) {
    report.line(format!("{name}: rate"), "events/s", phases.iter().map(|phase| phase.rate).collect());
    for (share, label) in [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")] {
        let waits = phases.iter().map(|phase| percentile(&phase.waits_ms, share));
        report.line(format!("{name}: {label} of a commit"), "ms", waits.collect());
    }
}

fn producers(server: &Server, load: &Load, url: &str, rate: Option<u32>) -> Producers {
    Producers {
        engine: server.engine(),
        url: url.to_owned(),
        connections: load.connections,
        keys: load.keys,
        payload: format!("{{\"pad\":\"{}\"}}", "x".repeat(load.payload.saturating_sub(10))),
        rate,
    }
}

async fn free(server: &Server, load: &Load, with_relay: bool) -> Result<Free> {
    let database = server.fresh_database().await?;
    let store = in_process::open(server.engine(), &database).await?;
    let directory = tempfile::tempdir()?;
    let work = Workload { rows: 0, keys: load.keys, payload: 0, batch: 500, runs: 1 };
    let config = null_config(directory.path(), &database.url, &work)?;
    let relay = with_relay.then(|| anyhow::Ok(command(&config, &["run"])?.spawn()?)).transpose()?;
    if with_relay {
        // The time that it takes to start is not part of the phase.
        sleep(Duration::from_secs(1)).await;
    }
    let (stop, log, begun) = (CancellationToken::new(), Arc::new(Log::default()), Instant::now());
    let running =
        tokio::spawn(producers(server, load, &database.url, None).run(stop.clone(), Arc::clone(&log)));
    sleep(Duration::from_secs(load.seconds)).await;
    stop.cancel();
    let waits_ms = running.await??;
    let rate = waits_ms.len() as f64 / begun.elapsed().as_secs_f64();
    let backlog = unsettled(server.engine(), &database.url).await? as f64;
    let catch_up = match relay {
        Some(relay) => end_when_drained(relay, server.engine(), &database.url).await?,
        None => 0.0,
    };
    store.close().await;
    Ok(Free { rate, waits_ms, backlog, catch_up })
}

/// Seconds until nothing waits any more.
async fn end_when_drained(mut relay: Child, engine: Engine, url: &str) -> Result<f64> {
    let begun = Instant::now();
    while unsettled(engine, url).await? > 0 {
        ensure!(begun.elapsed() < GIVE_UP, "the backlog was not drained");
        sleep(Duration::from_millis(20)).await;
    }
    let catch_up = begun.elapsed().as_secs_f64();
    kill_process(Pid::from_child(&relay), Signal::TERM)?;
    let status = relay.wait()?;
    ensure!(status.success(), "the relay ended with {status}");
    Ok(catch_up)
}

async fn rung(server: &Server, load: &Load, rate: u32) -> Result<Rung> {
    let database = server.fresh_database().await?;
    let store = in_process::open(server.engine(), &database).await?;
    let log = Arc::new(Log::default());
    let relay = in_process::relay(&store, 500, Duration::from_secs(1), Arc::clone(&log) as _)?;
    let (stop, shutdown, begun) = (CancellationToken::new(), CancellationToken::new(), Instant::now());
    let relay = tokio::spawn(relay.run(shutdown.clone()));
    let producers = producers(server, load, &database.url, Some(rate));
    let running = tokio::spawn(producers.run(stop.clone(), Arc::clone(&log)));
    sleep(Duration::from_secs(load.seconds)).await;
    stop.cancel();
    running.await??;
    let elapsed = begun.elapsed().as_secs_f64();
    let (committed, acked) = log.counts();
    timeout(GIVE_UP, log.caught_up()).await.context("the backlog was not drained")?;
    shutdown.cancel();
    relay.await??;
    store.close().await;
    Ok(Rung {
        produced: committed as f64 / elapsed,
        latencies_ms: log.latencies_ms(begun),
        backlog: committed.saturating_sub(acked) as f64,
    })
}
