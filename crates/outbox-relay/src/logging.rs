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
    let registry = tracing_subscriber::registry().with(quieten_clients(filter));
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

/// Brokers' clients whose log lines repeat, as errors, what the relay says itself; `RUST_LOG` can turn them on.
const NOISY: &[&str] = &["async_nats", "lapin"];

/// Never on: it shows payloads.
const INDISCREET: &[&str] = &["lapin::returned_messages"];

fn quieten_clients(filter: EnvFilter) -> EnvFilter {
    let asked_for = std::env::var(EnvFilter::DEFAULT_ENV).unwrap_or_default();
    let noisy = NOISY.iter().filter(|target| !asked_for.contains(**target));
    let off = noisy.chain(INDISCREET).filter_map(|target| format!("{target}=off").parse().ok());
    off.fold(filter, EnvFilter::add_directive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_show_payloads_are_never_heard() {
        let asked = EnvFilter::new("info,lapin::returned_messages=trace");
        let filter = quieten_clients(asked).to_string();
        assert!(filter.contains("lapin::returned_messages=off") && !filter.contains("trace"), "{filter}");
    }
}
