use outbox_store::{FailedEvent, Selection};
use time::format_description::well_known::Rfc3339;

use super::args::FailedCommand;
use super::out::{self, Format};
use super::{Failure, database};
use crate::config::Settings;

/// `outbox failed …`
pub(super) async fn failed(settings: &Settings, command: FailedCommand) -> Result<(), Failure> {
    let store = database::migrated(settings).await?;
    match command {
        FailedCommand::List { queue, limit, format } => {
            let selection = queue.map_or(Selection::All, Selection::Queue);
            let events = store.failed(&selection, limit).await?;
            store.close().await;
            list(&events, format)
        }
        FailedCommand::Retry(args) => {
            let selection = args.selection();
            let count = store.retry_failed(&selection).await?;
            store.close().await;
            done(&selection, count, "put back")
        }
        FailedCommand::Discard(args) => {
            let selection = args.selection();
            let count = store.discard_failed(&selection).await?;
            store.close().await;
            done(&selection, count, "discarded")
        }
    }
}

fn list(events: &[FailedEvent], format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => out::json(&events),
        Format::Table => {
            let rows: Vec<[String; 8]> = events.iter().map(row).collect();
            out::table(["ID", "SEQ", "QUEUE", "KEY", "EVENT TYPE", "RETRIES", "FAILED AT", "ERROR"], &rows)
        }
    }
}

fn row(event: &FailedEvent) -> [String; 8] {
    let at = event.failed_at.replace_nanosecond(0).unwrap_or(event.failed_at);
    [
        event.id.to_string(),
        event.seq.to_string(),
        event.queue.clone(),
        format!("{}/{}", event.aggregate_type, event.aggregate_id),
        event.event_type.clone().unwrap_or_else(|| "-".to_owned()),
        event.retry_count.to_string(),
        at.format(&Rfc3339).unwrap_or_else(|_| "-".to_owned()),
        event.last_error.clone().unwrap_or_default(),
    ]
}

/// Says how many; an event that was named and is not FAILED is an error, so that a typing error is seen.
fn done(selection: &Selection, count: u64, what: &str) -> Result<(), Failure> {
    out::line(format_args!("{count} {what}"))?;
    match selection {
        Selection::Ids(ids) if count < ids.len() as u64 => {
            let missing = ids.len() as u64 - count;
            Err(anyhow::anyhow!("{missing} of {} events are not FAILED: see outbox failed list", ids.len())
                .into())
        }
        _ => Ok(()),
    }
}
