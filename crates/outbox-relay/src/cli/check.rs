use std::time::Duration;

use outbox_store::{QueueStats, SchemaState, Store};
use serde::Serialize;
use tokio::time::Instant;

use super::alarms::alarms;
use super::out::{self, Format};
use super::{Failure, database};
use crate::config::Settings;

/// How long a sink may take to say that it is there.
const SINK_TIMEOUT: Duration = Duration::from_secs(10);

/// A claim that has been expired for so many sweeps is one that nobody sweeps.
const OVERDUE_SWEEPS: u32 = 3;

/// One thing that was looked at.
#[derive(Debug, Serialize)]
struct Finding {
    /// What was looked at.
    what: String,
    /// It is as it must be.
    ok: bool,
    /// What was found, and what to do.
    detail: String,
}

impl Finding {
    fn good(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { what: what.into(), ok: true, detail: detail.into() }
    }

    fn bad(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { what: what.into(), ok: false, detail: detail.into() }
    }
}

/// `outbox check`
pub(super) async fn check(settings: &Settings, format: Format) -> Result<(), Failure> {
    let mut findings = vec![configuration(settings)];
    findings.extend(database(settings).await);
    findings.extend(sinks(settings).await);
    print(&findings, format)?;
    if findings.iter().all(|finding| finding.ok) { Ok(()) } else { Err(Failure::Answered) }
}

fn print(findings: &[Finding], format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => out::json(&findings),
        Format::Table => {
            let row = |finding: &Finding| {
                let state = if finding.ok { "ok" } else { "WRONG" };
                [state.to_owned(), finding.what.clone(), finding.detail.clone()]
            };
            out::table(["STATE", "WHAT", "FOUND"], &findings.iter().map(row).collect::<Vec<_>>())
        }
    }
}

fn configuration(settings: &Settings) -> Finding {
    if settings.queues.is_empty() {
        return Finding::bad("configuration", database::NO_QUEUE);
    }
    let names: Vec<&str> = settings.queues.iter().map(|queue| queue.policy.name.as_str()).collect();
    Finding::good("configuration", format!("queues: {}", names.join(", ")))
}

async fn database(settings: &Settings) -> Vec<Finding> {
    let what = format!("database {}", settings.store.url);
    let store = match database::open(settings).await {
        Ok(store) => store,
        Err(error) => return vec![Finding::bad(what, super::one_line(&error))],
    };
    let mut findings = vec![Finding::good(what, "answers")];
    let schema = schema(&*store).await;
    let is_current = schema.ok;
    findings.push(schema);
    if is_current {
        match store.stats().await {
            Ok(stats) => findings.extend(stats.iter().flat_map(|stats| queue(stats, settings))),
            Err(error) => findings.push(Finding::bad("queues", error.to_string())),
        }
        findings.extend(stuck(settings).await);
    }
    store.close().await;
    findings
}

async fn schema(store: &dyn Store) -> Finding {
    match store.schema_state().await {
        Ok(state) => match database::require_current(&state) {
            Ok(()) => match state {
                SchemaState::Current { applied } => Finding::good("schema", format!("version {applied}")),
                _ => Finding::good("schema", "current"),
            },
            Err(error) => Finding::bad("schema", error.to_string()),
        },
        Err(error) => Finding::bad("schema", error.to_string()),
    }
}

/// What is to be said of one queue; one line when nothing is wrong.
fn queue(stats: &QueueStats, settings: &Settings) -> Vec<Finding> {
    let what = format!("queue {}", stats.queue);
    let mut findings = Vec::new();
    let mut alarm = |detail: String| findings.push(Finding::bad(what.clone(), detail));
    let unsettled = stats.pending + stats.processing;
    if unsettled > 0 && !settings.queues.iter().any(|queue| queue.policy.name == stats.queue) {
        let name = &stats.queue;
        alarm(format!(
            "{unsettled} events and not served by this configuration: add [queues.{name}], or let another relay serve it"
        ));
    }
    if stats.failed > 0 {
        alarm(format!("{} FAILED events: see `outbox failed list --queue {}`", stats.failed, stats.queue));
    }
    if stats.paused {
        alarm(format!("paused: `outbox resume {}` delivers it again", stats.queue));
    }
    if findings.is_empty() {
        let QueueStats { pending, processing, blocked_keys, .. } = stats;
        let detail =
            format!("{pending} pending, {processing} processing, {blocked_keys} keys wait for a retry");
        findings.push(Finding::good(what, detail));
    }
    findings
}

/// Keys that are held because of their destination, and claims that nobody sweeps.
async fn stuck(settings: &Settings) -> Vec<Finding> {
    let found = match alarms(&settings.store, settings.sweep_interval * OVERDUE_SWEEPS).await {
        Ok(found) => found,
        Err(error) => return vec![Finding::bad("stuck events", super::one_line(&error))],
    };
    let mut findings = Vec::new();
    for alarm in found {
        let what = format!("queue {}", alarm.queue);
        if alarm.held_keys > 0 {
            let reason = alarm.reason.unwrap_or_default();
            let detail = format!("{} keys are held because of their destination: {reason}", alarm.held_keys);
            findings.push(Finding::bad(what.clone(), detail));
        }
        if alarm.expired_claims > 0 {
            let detail = format!(
                "{} claims have outlived their lease and are not swept: is a relay running for this queue? `outbox sweep` does it once",
                alarm.expired_claims
            );
            findings.push(Finding::bad(what, detail));
        }
    }
    findings
}

async fn sinks(settings: &Settings) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, sink) in &settings.sinks {
        let what = format!("sink {name}");
        let sink = match outbox_sinks::build(name, &sink.config) {
            Ok(sink) => sink,
            Err(error) => {
                findings.push(Finding::bad(what, error));
                continue;
            }
        };
        findings.push(match sink.check(Instant::now() + SINK_TIMEOUT).await {
            Ok(detail) => Finding::good(what, detail),
            Err(error) => Finding::bad(what, error),
        });
        sink.close().await;
    }
    findings
}
