use std::time::Duration;

use outbox_store::QueueStats;

use super::out::{self, Format};
use super::{Failure, database};
use crate::config::Settings;

/// `outbox status`
pub(super) async fn status(settings: &Settings, format: Format) -> Result<(), Failure> {
    let store = database::migrated(settings).await?;
    let stats = store.stats().await?;
    match format {
        Format::Json => out::json(&stats),
        Format::Table => {
            let rows: Vec<[String; 7]> = stats.iter().map(row).collect();
            out::table(["QUEUE", "PENDING", "PROCESSING", "FAILED", "BLOCKED KEYS", "OLDEST", "STATE"], &rows)
        }
    }
}

fn row(stats: &QueueStats) -> [String; 7] {
    [
        stats.queue.clone(),
        stats.pending.to_string(),
        stats.processing.to_string(),
        stats.failed.to_string(),
        stats.blocked_keys.to_string(),
        stats.oldest_pending_age.map_or_else(|| "-".to_owned(), age),
        if stats.paused { "paused" } else { "on" }.to_owned(),
    ]
}

/// An age as people say it: no more precise than its size deserves.
fn age(age: Duration) -> String {
    let rounded = if age < Duration::from_secs(1) {
        Duration::from_millis(age.as_millis().try_into().unwrap_or(u64::MAX))
    } else {
        Duration::from_secs(age.as_secs())
    };
    humantime::format_duration(rounded).to_string()
}

/// `outbox pause` and `outbox resume`
pub(super) async fn set_paused(settings: &Settings, queue: &str, paused: bool) -> Result<(), Failure> {
    let store = database::migrated(settings).await?;
    let configured = settings.queues.iter().any(|one| one.policy.name == queue);
    let stats = store.stats().await?;
    if !configured && !stats.iter().any(|one| one.queue == queue) {
        let known: Vec<&str> = stats.iter().map(|one| one.queue.as_str()).collect();
        let known = if known.is_empty() { "there is none yet".to_owned() } else { known.join(", ") };
        return Err(anyhow::anyhow!("no queue {queue:?} in the database; known: {known}").into());
    }
    store.register_queues(&[queue]).await?;
    store.set_paused(queue, paused).await?;
    store.close().await;
    out::line(format_args!("{queue} {}", if paused { "paused" } else { "resumed" }))
}
