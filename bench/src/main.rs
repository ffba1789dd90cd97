//! Workloads of the outbox relay, each beside something measured in the same run. See README.md.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod beside;
mod blocked;
mod bulkhead;
mod cost;
mod drain;
mod engine;
mod enqueue;
mod failures;
mod idle;
mod in_process;
mod peers;
mod pinned;
mod producers;
mod report;
mod roofline;
mod sinks;
mod sustained;
mod textbook;
mod workload;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::engine::Engine;
use crate::report::Report;
use crate::workload::Workload;

/// Measures the relay on private databases that it starts itself.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Writes the figures there as JSON too.
    #[arg(long, global = true)]
    json: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// A backlog drained, beside rooflines and the textbook loop.
    Drain {
        /// The database.
        engine: Engine,
        #[command(flatten)]
        work: Workload,
        #[command(flatten)]
        options: drain::Options,
    },
    /// One key blocked with as many followers as there are rows of other keys, beside the same backlog unblocked.
    Blocked {
        /// The database.
        engine: Engine,
        #[command(flatten)]
        work: Workload,
    },
    /// A backlog of which some events are refused once, beside the same without a refusal.
    Failures {
        /// The database.
        engine: Engine,
        #[command(flatten)]
        work: Workload,
        /// One in so many events is refused.
        #[arg(long, default_value_t = 33)]
        one_in: u64,
    },
    /// Producers beside the relay: their rate and waits with and without it, and how soon their events are delivered.
    Sustained {
        /// The database.
        engine: Engine,
        #[command(flatten)]
        load: sustained::Load,
    },
    /// A snapshot that is held on PostgreSQL beside a backlog that stays.
    Pinned {
        #[command(flatten)]
        load: pinned::Load,
    },
    /// Single events to an idle relay: latency from commit to acknowledgement, and what idling costs.
    Idle {
        /// The database.
        engine: Engine,
        /// Events in a run.
        #[arg(long, default_value_t = 500)]
        events: u32,
        /// Runs.
        #[arg(long, default_value_t = 3)]
        runs: u32,
    },
    /// A business transaction with and without an outbox row, and events in batches beside single ones.
    Enqueue {
        /// The database.
        engine: Engine,
        #[command(flatten)]
        load: enqueue::Load,
    },
    /// A broker's sink beside its client alone: no database.
    Sink {
        /// The broker.
        broker: sinks::Kind,
        #[command(flatten)]
        work: Workload,
    },
    /// The http sink beside its client alone: no database.
    Http {
        #[command(flatten)]
        work: Workload,
    },
    /// One queue to a sink that is up, beside another with a backlog whose sink is down.
    Bulkhead {
        /// The database.
        engine: Engine,
        #[command(flatten)]
        work: Workload,
    },
    /// SQLite beside an application that commits every 10 ms, with and without the relay.
    Beside {
        #[command(flatten)]
        work: Workload,
    },
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let report = measure(arguments.command).await?;
    println!("{report}");
    if let Some(path) = arguments.json {
        std::fs::write(&path, serde_json::to_vec_pretty(&report)?)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

async fn measure(command: Command) -> Result<Report> {
    match command {
        Command::Drain { engine, work, options } => drain::run(engine, work, options).await,
        Command::Blocked { engine, work } => blocked::run(engine, work).await,
        Command::Failures { engine, work, one_in } => failures::run(engine, work, one_in).await,
        Command::Sustained { engine, load } => sustained::run(engine, load).await,
        Command::Pinned { load } => pinned::run(load).await,
        Command::Idle { engine, events, runs } => idle::run(engine, events, runs).await,
        Command::Enqueue { engine, load } => enqueue::run(engine, load).await,
        Command::Sink { broker, work } => sinks::run(broker, work).await,
        Command::Http { work } => sinks::http::run(work).await,
        Command::Bulkhead { engine, work } => bulkhead::run(engine, work).await,
        Command::Beside { work } => beside::run(work).await,
    }
}
