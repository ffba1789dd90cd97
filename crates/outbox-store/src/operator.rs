use std::time::Duration;

use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

/// How the database's schema stands to what this binary needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaState {
    /// No outbox tables.
    Missing,
    /// Migrations are missing.
    Behind {
        /// Newest version applied.
        applied: i64,
        /// Newest version this binary knows.
        needed: i64,
    },
    /// Exactly what this binary needs, or newer by additions only.
    Current {
        /// Newest version applied.
        applied: i64,
    },
    /// A newer binary made a breaking change.
    Newer {
        /// Newest version applied.
        applied: i64,
        /// Newest version this binary knows.
        known: i64,
    },
}

/// One row given up by the sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweptRow {
    /// The event's id.
    pub id: Uuid,
    /// The event's type.
    pub event_type: Option<String>,
    /// Claims lost with the row in hand, this one included.
    pub lost_count: u32,
}

/// One expired claim, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swept {
    /// The claim's token.
    pub token: i64,
    /// The relay that made it.
    pub relay: String,
    /// Rows that went back to PENDING.
    pub recovered: u64,
    /// Event types of the recovered rows, each once; for the log line.
    pub event_types: Vec<String>,
    /// The highest lost_count among the recovered rows, this loss included.
    pub most_lost: u32,
    /// The row that was given up, if any (a row is only given up when it was alone in its claim).
    pub failed: Option<SweptRow>,
}

/// How a queue stands. Counts are exact up to the store's counting limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct QueueStats {
    /// The queue's name.
    pub queue: String,
    /// Rows waiting: ready, delayed, retried or parked.
    pub pending: u64,
    /// Rows in a claim.
    pub processing: u64,
    /// Rows given up and not discarded.
    pub failed: u64,
    /// Keys whose head is being retried, or whose followers are being let out.
    pub blocked_keys: u64,
    /// Age of the oldest ready row by the database's clock; `None` when nothing is ready.
    #[serde(with = "humantime_seconds")]
    pub oldest_pending_age: Option<Duration>,
    /// The highest seq ever drawn in this database: what has been enqueued, all queues together.
    pub last_seq: i64,
    /// An operator has paused the queue.
    pub paused: bool,
}

/// A FAILED row as an operator sees it. Never the payload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FailedEvent {
    /// The event's id.
    pub id: Uuid,
    /// Insertion order.
    pub seq: i64,
    /// The row's queue.
    pub queue: String,
    /// First half of the ordering key.
    pub aggregate_type: String,
    /// Second half of the ordering key.
    pub aggregate_id: String,
    /// The event's type.
    pub event_type: Option<String>,
    /// Failures charged to it.
    pub retry_count: u32,
    /// Claims lost with it in hand.
    pub lost_count: u32,
    /// Why it was given up.
    pub last_error: Option<String>,
    /// When, by the database's clock.
    #[serde(with = "time::serde::rfc3339")]
    pub failed_at: OffsetDateTime,
}

/// Which FAILED rows an operator means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// These events.
    Ids(Vec<Uuid>),
    /// All of one queue.
    Queue(String),
    /// All there are.
    All,
}

/// What a WAL checkpoint did (SQLite).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalCheckpoint {
    /// Frames in the WAL.
    pub wal_frames: u64,
    /// Frames moved into the database.
    pub checkpointed_frames: u64,
    /// Size of the WAL file in bytes.
    pub wal_bytes: u64,
}

mod humantime_seconds {
    use std::time::Duration;

    use serde::Serializer;

    pub(super) fn serialize<S: Serializer>(age: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match age {
            Some(age) => serializer.serialize_some(&age.as_secs_f64()),
            None => serializer.serialize_none(),
        }
    }
}
