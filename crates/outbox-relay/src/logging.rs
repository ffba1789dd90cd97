//! Logs go to standard error: for people, or one JSON object a line.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people; with colours on a terminal.
    Human,
    /// One JSON object a line.
    Json,
}

/// Starts logging at `level`, unless `RUST_LOG` says otherwise.
pub fn init(format: LogFormat, level: LevelFilter) {
    let filter = EnvFilter::builder().with_default_directive(level.into()).from_env_lossy();
    let registry = tracing_subscriber::registry().with(filter);
    // Fails only where a subscriber is set already, as in a test that runs several commands in one process.
    let _ = match format {
        LogFormat::Human => {
            let colours = std::io::stderr().is_terminal();
            let layer = tracing_subscriber::fmt::layer().with_ansi(colours).with_writer(std::io::stderr);
            registry.with(layer).try_init()
        }
        LogFormat::Json => {
            let layer = tracing_subscriber::fmt::layer()
                .json()
                .flatten_event(true)
                .with_current_span(true)
                .with_span_list(false)
                .with_writer(std::io::stderr);
            registry.with(layer).try_init()
        }
    };
}
