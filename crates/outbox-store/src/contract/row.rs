use std::time::Duration;

use uuid::Uuid;

use crate::Payload;

/// When a row that a case writes may go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// `available_at` is not set.
    Now,
    /// This long from now.
    In(Duration),
    /// This long before the writer's transaction began.
    Ago(Duration),
    /// Infinity: behind the head of its key.
    Parked,
}

/// A row as an application inserts it.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the table's columns")]
pub struct NewRow {
    pub id: Uuid,
    pub queue: String,
    pub aggregate_type: String,
    pub aggregate_id: String,
    pub event_type: Option<String>,
    pub payload: Payload,
    pub content_type: Option<String>,
    pub headers: Option<String>,
    pub destination: Option<String>,
    pub max_retries: Option<u32>,
    pub priority: i16,
    pub when: When,
}

/// A row of `key` whose event type is `label`, by which cases name it.
#[must_use]
pub fn row(key: &str, label: &str) -> NewRow {
    NewRow {
        id: Uuid::now_v7(),
        queue: "default".to_owned(),
        aggregate_type: "Order".to_owned(),
        aggregate_id: key.to_owned(),
        event_type: Some(label.to_owned()),
        payload: Payload::Json(format!(r#"{{"label": "{label}"}}"#).into()),
        content_type: None,
        headers: None,
        destination: None,
        max_retries: None,
        priority: 0,
        when: When::Now,
    }
}

impl NewRow {
    /// In another queue.
    #[must_use]
    pub fn queue(mut self, queue: &str) -> Self {
        queue.clone_into(&mut self.queue);
        self
    }

    /// With this `available_at`.
    #[must_use]
    pub fn when(mut self, when: When) -> Self {
        self.when = when;
        self
    }

    /// With this body.
    #[must_use]
    pub fn payload(mut self, payload: Payload) -> Self {
        self.payload = payload;
        self
    }

    /// With this priority.
    #[must_use]
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    /// With its own bound on retries.
    #[must_use]
    pub fn max_retries(mut self, max_retries: u32) -> Self {
        self.max_retries = Some(max_retries);
        self
    }
}

/// What `available_at` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Available {
    /// NULL.
    Ready,
    /// A time that has come.
    Due,
    /// A time that is still to come, in whole seconds from now.
    Later(u64),
    /// Infinity.
    Parked,
}

/// A row as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table's columns")]
pub struct Row {
    pub id: Uuid,
    pub seq: i64,
    pub queue: String,
    pub key: String,
    pub label: String,
    pub status: String,
    pub retry_count: i64,
    pub lost_count: i64,
    pub last_error: Option<String>,
    pub receipt: Option<String>,
    pub available: Available,
    pub claim_token: Option<i64>,
    pub settled: bool,
    pub failed: bool,
    /// Microseconds since 1970; tells whether a row was written at all.
    pub updated_at: i64,
}

/// A row of `outbox_blocked_keys`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table's columns")]
pub struct Block {
    pub key: String,
    pub hold_after: i64,
    pub released: bool,
}
