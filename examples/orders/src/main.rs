//! An order service and a consumer that keeps balances, joined by the outbox.
//!
//! `service` writes orders and their events in one transaction, the relay delivers the events, `balances` counts each of
//! them once. `sources` is what brokers differ in, `demo` starts all of it.

mod balances;
mod database;
mod demo;
mod event;
mod service;
mod sources;

use std::io::{self, IsTerminal};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::balances::Balances;
use crate::demo::Demo;
use crate::sources::{Address, Subscription};

/// An order service and a consumer that keeps balances, joined by the outbox.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves orders over HTTP. The database has its outbox tables already: `outbox migrate up`
    Serve {
        /// sqlite://FILE or postgres://…
        #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
        database: String,
        #[arg(long, default_value = "127.0.0.1:8080")]
        listen: String,
    },
    /// Keeps balances of what the relay delivers
    Consume {
        /// The consumer's own database: sqlite://FILE or postgres://…
        #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
        database: String,
        /// file:PATH, kafka://HOST:PORT, amqp://…, redis://…, nats://… or http://LISTEN:PORT, a webhook
        #[arg(long)]
        from: Address,
        #[command(flatten)]
        subscription: Subscription,
        /// Counts every delivery, to see balances go wrong
        #[arg(long)]
        without_deduplication: bool,
    },
    /// Runs the service, a relay and a consumer, kills the latter two in between, and compares the books
    Demo(Demo),
}

#[tokio::main]
async fn main() -> Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,sqlx=warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
    let command = run(Arguments::parse().command);
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    // What is under way is dropped where it stands, as a crash would do it: no transaction is half done.
    tokio::select! {
        result = command => result,
        _ = terminated.recv() => Ok(()),
        _ = interrupted.recv() => Ok(()),
    }
}

async fn run(command: Command) -> Result<()> {
    match command {
        Command::Serve { database, listen } => {
            let service = service::open(&database).await?;
            let listener =
                TcpListener::bind(&listen).await.with_context(|| format!("cannot listen on {listen}"))?;
            tracing::info!(address = %listener.local_addr()?, "taking orders");
            Ok(axum::serve(listener, service).await?)
        }
        Command::Consume { database, from, subscription, without_deduplication } => {
            let balances = Balances::open(&database, !without_deduplication).await?;
            let mut source = from.open(&subscription).await?;
            tracing::info!(?subscription, "keeping balances");
            sources::consume(source.as_mut(), &balances).await
        }
        Command::Demo(demo) => demo.run().await,
    }
}
