use bytes::Bytes;
use time::OffsetDateTime;
use uuid::Uuid;

/// Where a store finds a row again without reading an index: its ctid on PostgreSQL, its seq on SQLite.
///
/// Opaque to everyone but the store that made it, and valid only together with the claim it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowRef(pub u64);

/// The body of an event, byte for byte as the application wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Text of the JSON column (on SQLite: text that is valid JSON).
    Json(Bytes),
    /// Text that is not JSON; only SQLite can hold it. Delivered with content type `text/plain`.
    Text(Bytes),
    /// Bytes of any kind.
    Binary(Bytes),
    /// Neither column is set: the event says that its aggregate is gone.
    Tombstone,
}

impl Payload {
    /// The bytes to deliver; `None` for a tombstone.
    #[must_use]
    pub fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Json(bytes) | Self::Text(bytes) | Self::Binary(bytes) => Some(bytes),
            Self::Tombstone => None,
        }
    }

    /// Length in bytes; 0 for a tombstone.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes().map_or(0, Bytes::len)
    }

    /// True when there is nothing to deliver but the event's metadata.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What a row without a `content_type` is delivered as; `None` for a tombstone.
    #[must_use]
    pub fn default_content_type(&self) -> Option<&'static str> {
        match self {
            Self::Json(_) => Some("application/json"),
            Self::Text(_) => Some("text/plain"),
            Self::Binary(_) => Some("application/octet-stream"),
            Self::Tombstone => None,
        }
    }
}

/// A claimed row of `outbox_tasks`.
#[derive(Clone, Debug)]
pub struct Event {
    /// Identity of the event, and what consumers deduplicate on.
    pub id: Uuid,
    /// Insertion order; orders the events of one key.
    pub seq: i64,
    /// Where the store finds the row again.
    pub row: RowRef,
    /// First half of the ordering key.
    pub aggregate_type: String,
    /// Second half of the ordering key.
    pub aggregate_id: String,
    /// What happened, in the application's words.
    pub event_type: Option<String>,
    /// The body.
    pub payload: Payload,
    /// Overrides the payload's default content type.
    pub content_type: Option<String>,
    /// The `headers` column as it is stored: a JSON object of strings, or nothing. Parsed by the encoder, so that a
    /// malformed one fails its own row and not the claim.
    pub headers: Option<String>,
    /// Overrides the queue's destination template.
    pub destination: Option<String>,
    /// When the row was inserted, by the database's clock.
    pub created_at: OffsetDateTime,
    /// Failures charged to the event so far.
    pub retry_count: u32,
    /// Overrides the queue's `max_retries`.
    pub max_retries: Option<u32>,
    /// Claims holding the row whose lease ran out.
    pub lost_count: u32,
    /// The row is what its key's block waits for: settling it may release followers.
    pub is_hold: bool,
}

impl Event {
    /// A tombstone of aggregate type `Order`, never tried, without anything that may be left out; its id is made of
    /// `seq`. For tests of what handles events.
    #[must_use]
    pub fn bare(seq: i64, aggregate_id: impl Into<String>) -> Self {
        Self {
            id: Uuid::from_u128(u128::from(seq.cast_unsigned())),
            seq,
            row: RowRef(1),
            aggregate_type: "Order".to_owned(),
            aggregate_id: aggregate_id.into(),
            event_type: None,
            payload: Payload::Tombstone,
            content_type: None,
            headers: None,
            destination: None,
            created_at: OffsetDateTime::UNIX_EPOCH,
            retry_count: 0,
            max_retries: None,
            lost_count: 0,
            is_hold: false,
        }
    }
}
