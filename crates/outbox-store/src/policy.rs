use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Whether a queue keeps the order of each key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ordering {
    /// Events of one (aggregate_type, aggregate_id) are delivered in seq order.
    #[default]
    Key,
    /// No order; urgent rows first by `priority`, and a row in retry holds nothing back.
    None,
}

/// What becomes of a row once its sink has acknowledged it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Published {
    /// It stays as PUBLISHED, with its receipt, for `keep_for`.
    #[default]
    Keep,
    /// It is deleted in the settle.
    Delete,
}

/// What a FAILED row does to the rows of its key behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFailed {
    /// They go on.
    #[default]
    Skip,
    /// They wait until an operator retries or discards the failed row.
    Block,
}

/// What a store needs to know of a queue. Built from the configuration; immutable while the relay runs.
#[derive(Clone, Debug)]
pub struct QueuePolicy {
    /// The queue's name, as in the `queue` column.
    pub name: String,
    /// Whether each key's order is kept.
    pub ordering: Ordering,
    /// Most rows in one claim; at least 1.
    pub batch: u32,
    /// Most payload bytes in one claim; a single larger row still goes, alone.
    pub batch_bytes: u64,
    /// How long a claim owns its rows, by the database's clock.
    pub lease: Duration,
    /// What becomes of delivered rows.
    pub published: Published,
    /// How long PUBLISHED and discarded rows are kept.
    pub keep_for: Duration,
    /// How long FAILED rows are kept; `None` keeps them until an operator acts.
    pub failed_keep_for: Option<Duration>,
    /// What a FAILED row does to its followers.
    pub on_failed: OnFailed,
    /// Retries for a row that sets none of its own; also bounds `lost_count`.
    pub max_retries: u32,
}

impl QueuePolicy {
    /// The documented defaults for a queue of this name.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ordering: Ordering::Key,
            batch: 500,
            batch_bytes: 16 << 20,
            lease: Duration::from_secs(60),
            published: Published::Keep,
            keep_for: Duration::from_secs(24 * 60 * 60),
            failed_keep_for: None,
            on_failed: OnFailed::Skip,
            max_retries: 5,
        }
    }
}
