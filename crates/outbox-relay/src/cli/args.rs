//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use outbox_store::Selection;
use uuid::Uuid;

use super::out::Format;
use crate::logging::LogFormat;

/// Delivers what an application commits to its outbox table: at least once, in order per aggregate.
#[derive(Debug, Parser)]
#[command(
    name = "outbox",
    version,
    max_term_width = 100,
    after_help = "\
Try it:
  outbox dev                     a relay with a demonstration, in one command

Set it up:
  outbox migrate up              create the tables (or print them: outbox migrate sql)
  outbox check                   is everything as it must be?
  outbox run                     deliver

Settings come from outbox.toml, then OUTBOX_* variables (OUTBOX_STORE__URL is store.url), then --set.
Exit codes: 0 done, 1 failed, 2 wrong usage, 78 wrong configuration."
)]
pub(super) struct Cli {
    /// The configuration file [default: ./outbox.toml, then /etc/outbox/outbox.toml, then none]
    #[arg(long, global = true, env = "OUTBOX_CONFIG", value_name = "PATH", hide_env = true)]
    pub(super) config: Option<PathBuf>,

    /// Sets one key over file and environment: --set queues.default.batch=100
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,

    /// How log lines look; they go to standard error, and RUST_LOG sets the level
    #[arg(
        long,
        global = true,
        env = "OUTBOX_LOG",
        value_name = "FORMAT",
        default_value = "human",
        hide_env = true
    )]
    pub(super) log: LogFormat,

    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show the relay at work, with events of its own, in one command
    Dev(DevArgs),
    /// Deliver until stopped
    #[command(after_help = "\
Waits for a database that refuses connections. A sink that is down never stops the start.
SIGTERM and SIGINT end it within relay.shutdown_grace; a second signal at once.

Example:
  outbox run --config /etc/outbox/outbox.toml --log json")]
    Run(RunArgs),
    /// Create or look at the outbox tables
    #[command(subcommand)]
    Migrate(MigrateCommand),
    /// Insert one event and print its id
    #[command(after_help = "\
Examples:
  outbox enqueue --aggregate-type Order --aggregate-id 101 --event-type OrderCreated --payload '{\"total\": 42}'
  outbox enqueue --aggregate-type Order --aggregate-id 101 --payload @event.json --header tenant=acme --delay 5m
  outbox enqueue --aggregate-type Invoice --aggregate-id 7 --key invoice:7:send-email    (once, however often it is run)
  outbox enqueue --aggregate-type Order --aggregate-id 101                               (a tombstone: no payload)")]
    Enqueue(EnqueueArgs),
    /// Look for everything that is wrong: configuration, database, sinks, stuck rows
    #[command(after_help = "Exits 1 when something is wrong.")]
    Check {
        /// How to print the findings
        #[arg(long, value_name = "FORMAT", default_value = "table")]
        format: Format,
    },
    /// Show how every queue stands
    Status {
        /// How to print the queues
        #[arg(long, value_name = "FORMAT", default_value = "table")]
        format: Format,
    },
    /// Recover expired claims and apply retention, once, for the configured queues
    Sweep {
        /// How to print what was done
        #[arg(long, value_name = "FORMAT", default_value = "table")]
        format: Format,
    },
    /// List, retry or discard events that could not be delivered
    #[command(subcommand)]
    Failed(FailedCommand),
    /// Stop delivering a queue, on every relay, until it is resumed
    Pause {
        /// The queue's name
        queue: String,
    },
    /// Deliver a paused queue again
    Resume {
        /// The queue's name
        queue: String,
    },
    /// Look at the configuration
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Deliver what is due and what is in flight, then exit: 0, or 1 when a sink that is down holds back due rows
    #[arg(long)]
    pub(super) once: bool,
}

#[derive(Debug, Args)]
pub(super) struct DevArgs {
    /// The SQLite file to use, kept afterwards [default: a temporary one]
    #[arg(long, value_name = "PATH")]
    pub(super) file: Option<PathBuf>,

    /// Stop after this many deliveries
    #[arg(long, value_name = "N")]
    pub(super) count: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub(super) enum MigrateCommand {
    /// Apply the migrations that are missing
    Up,
    /// Show how the database's schema stands to this binary
    Status {
        /// How to print it
        #[arg(long, value_name = "FORMAT", default_value = "table")]
        format: Format,
    },
    /// Print the migrations, for a migration tool of your own; needs no database
    #[command(
        after_help = "The engine is that of store.url, and so is the schema.\n\nExample:\n  outbox migrate sql --set store.url=postgres:///app > V7__outbox.sql"
    )]
    Sql,
}

#[derive(Debug, Args)]
pub(super) struct EnqueueArgs {
    /// The queue that delivers it
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(super) queue: String,

    /// First half of the ordering key
    #[arg(long, value_name = "TYPE")]
    pub(super) aggregate_type: String,

    /// Second half of the ordering key
    #[arg(long, value_name = "ID")]
    pub(super) aggregate_id: String,

    /// What happened
    #[arg(long, value_name = "TYPE")]
    pub(super) event_type: Option<String>,

    /// JSON text, @FILE, or - for standard input; without it the event is a tombstone
    #[arg(long, value_name = "JSON|@FILE|-")]
    pub(super) payload: Option<String>,

    /// The payload's media type; one that is not JSON sends the payload as bytes
    #[arg(long, value_name = "TYPE")]
    pub(super) content_type: Option<String>,

    /// A header that travels with the event; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    pub(super) headers: Vec<(String, String)>,

    /// Where it goes, instead of where the queue's template says
    #[arg(long, value_name = "DESTINATION")]
    pub(super) destination: Option<String>,

    /// Deliver it after this time: 30s, 5m, 2h
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(super) delay: Option<Duration>,

    /// Idempotency key: the same key in the same queue is inserted once
    #[arg(long, value_name = "KEY")]
    pub(super) key: Option<String>,

    /// Retries before it is FAILED, instead of the queue's setting
    #[arg(long, value_name = "N")]
    pub(super) max_retries: Option<u32>,

    /// Higher goes first, in queues with ordering = "none"
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(super) priority: i16,
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum FailedCommand {
    /// Show failed events, newest first
    List {
        /// Only of this queue
        #[arg(long, value_name = "NAME")]
        queue: Option<String>,

        /// Show at most this many
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: u32,

        /// How to print them
        #[arg(long, value_name = "FORMAT", default_value = "table")]
        format: Format,
    },
    /// Deliver failed events again, with both counts at 0
    #[command(after_help = "\
Examples:
  outbox failed retry --id 0198f0c2-7e1a-7c3e-9d4e-2f1b6a5c8d90
  outbox failed retry --queue default")]
    Retry(SelectionArgs),
    /// Give failed events up for good; what waited behind them goes on
    #[command(after_help = "\
Example:
  outbox failed discard --id 0198f0c2-7e1a-7c3e-9d4e-2f1b6a5c8d90")]
    Discard(SelectionArgs),
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct SelectionArgs {
    /// This event; may be repeated
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<Uuid>,

    /// All of this queue
    #[arg(long, value_name = "NAME")]
    queue: Option<String>,

    /// All there are
    #[arg(long)]
    all: bool,
}

impl SelectionArgs {
    pub(super) fn selection(self) -> Selection {
        match self.queue {
            Some(queue) => Selection::Queue(queue),
            None if self.all => Selection::All,
            None => Selection::Ids(self.ids),
        }
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum ConfigCommand {
    /// Show every setting in effect and who set it; secrets are hidden
    Show {
        /// How to print them
        #[arg(long, value_name = "FORMAT", default_value = "table")]
        format: Format,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
