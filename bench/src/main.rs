//! Workloads of the outbox relay, each beside something measured in the same run. See README.md.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod beside;
mod blocked;
mod bulkhead;
mod drain;
mod engine;
mod enqueue;
mod idle;
mod in_process;
mod sinks;
mod textbook;
mod workload;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::engine::Engine;
use crate::workload::Workload;

/// Measures the relay on private databases that it starts itself.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// A backlog drained to the null sink, beside the textbook loop.
    Drain {
        /// The database.
        engine: Engine,
        #[command(flatten)]
        work: Workload,
        /// Keep PUBLISHED rows instead of deleting them.
        #[arg(long)]
        keep: bool,
    },
    /// One key blocked with as many followers as there are rows of other keys, beside the same backlog unblocked.
    Blocked {
        /// The database.
        engine: Engine,
        #[command(flatten)]
        work: Workload,
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
    /// The kafka sink beside its client alone: no database.
    Kafka {
        #[command(flatten)]
        work: Workload,
    },
    /// The rabbitmq sink beside its client alone: no database.
    Rabbitmq {
        #[command(flatten)]
        work: Workload,
    },
    /// The redis sink beside its client alone: no database.
    Redis {
        #[command(flatten)]
        work: Workload,
    },
    /// The nats sink beside its client alone: no database.
    Nats {
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
    match Arguments::parse().command {
        Command::Drain { engine, work, keep } => drain::run(engine, work, keep).await,
        Command::Blocked { engine, work } => blocked::run(engine, work).await,
        Command::Idle { engine, events, runs } => idle::run(engine, events, runs).await,
        Command::Enqueue { engine, load } => enqueue::run(engine, load).await,
        Command::Kafka { work } => sinks::kafka::run(work).await,
        Command::Rabbitmq { work } => sinks::rabbitmq::run(work).await,
        Command::Redis { work } => sinks::redis::run(work).await,
        Command::Nats { work } => sinks::nats::run(work).await,
        Command::Http { work } => sinks::http::run(work).await,
        Command::Bulkhead { engine, work } => bulkhead::run(engine, work).await,
        Command::Beside { work } => beside::run(work).await,
    }
}
