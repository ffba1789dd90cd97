use std::fmt;
use std::time::Duration;

use serde::Serialize;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::{EnqueueError, limits};

/// An event to be inserted. Limits are checked by [`validate`](Self::validate), which every `enqueue` calls.
///
/// Its Debug form leaves payload and header values out.
#[derive(Clone)]
pub struct NewEvent {
    pub(crate) identity: Identity,
    pub(crate) aggregate_type: String,
    pub(crate) aggregate_id: String,
    pub(crate) event_type: Option<String>,
    pub(crate) payload: Payload,
    pub(crate) content_type: Option<String>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) destination: Option<String>,
    pub(crate) queue: String,
    pub(crate) delay: Option<Duration>,
    pub(crate) max_retries: Option<u32>,
    pub(crate) priority: i16,
}

#[derive(Clone)]
pub(crate) enum Identity {
    Random(Uuid),
    Given(Uuid),
    Key(String),
}

#[derive(Clone)]
pub(crate) enum Payload {
    /// Serialised here, so known to be JSON.
    Json(String),
    /// JSON by the caller's word.
    JsonText(String),
    Bytes(Vec<u8>),
    Tombstone,
}

impl NewEvent {
    /// An event about one aggregate, say `("Order", "101")`; the two together are the ordering key.
    ///
    /// It has a new UUIDv7, no payload (a tombstone), the queue `default`, and is deliverable as soon as it is
    /// committed.
    #[must_use]
    pub fn new(aggregate_type: impl Into<String>, aggregate_id: impl Into<String>) -> Self {
        Self {
            identity: Identity::Random(Uuid::now_v7()),
            aggregate_type: aggregate_type.into(),
            aggregate_id: aggregate_id.into(),
            event_type: None,
            payload: Payload::Tombstone,
            content_type: None,
            headers: Vec::new(),
            destination: None,
            queue: "default".to_owned(),
            delay: None,
            max_retries: None,
            priority: 0,
        }
    }

    /// The id to insert under instead of a new one. An id that is in the table already makes the event a duplicate.
    /// Takes the place of an idempotency key set before.
    #[must_use]
    pub fn id(mut self, id: Uuid) -> Self {
        self.identity = Identity::Given(id);
        self
    }

    /// Derives the id from the queue and this key, so that inserting it again is a duplicate while the first row is
    /// kept: see [`idempotent_id`] and the crate's introduction. Takes the place of an id set before.
    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.identity = Identity::Key(key.into());
        self
    }

    /// What happened, in the application's words: `OrderCreated`.
    #[must_use]
    pub fn event_type(mut self, event_type: impl Into<String>) -> Self {
        self.event_type = Some(event_type.into());
        self
    }

    /// The payload, serialised to JSON.
    ///
    /// # Errors
    /// [`EnqueueError::Serialize`] when serde cannot.
    pub fn json(mut self, value: &(impl Serialize + ?Sized)) -> Result<Self, EnqueueError> {
        self.payload = Payload::Json(serde_json::to_string(value).map_err(EnqueueError::Serialize)?);
        Ok(self)
    }

    /// The payload as JSON text, delivered byte for byte as given. That it is JSON is checked with the limits.
    #[must_use]
    pub fn json_text(mut self, text: impl Into<String>) -> Self {
        self.payload = Payload::JsonText(text.into());
        self
    }

    /// The payload as bytes of any kind. Say what they are with [`content_type`](Self::content_type).
    #[must_use]
    pub fn bytes(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.payload = Payload::Bytes(bytes.into());
        self
    }

    /// Media type of the payload; without it `application/json` or `application/octet-stream`.
    #[must_use]
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// A header that travels with the event. The same name again replaces it.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let (name, value) = (name.into(), value.into());
        match self.headers.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.headers.push((name, value)),
        }
        self
    }

    /// Several headers, each as by [`header`](Self::header).
    #[must_use]
    pub fn headers<N: Into<String>, V: Into<String>>(
        self,
        headers: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        headers.into_iter().fold(self, |event, (name, value)| event.header(name, value))
    }

    /// Where it goes, instead of where the queue's template says: topic, routing key, stream or subject.
    #[must_use]
    pub fn destination(mut self, destination: impl Into<String>) -> Self {
        self.destination = Some(destination.into());
        self
    }

    /// The queue that delivers it; `default` unless set. Some relay must be configured for it.
    #[must_use]
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.queue = queue.into();
        self
    }

    /// Not to be delivered before this time from now has passed, by the database's clock. Holds nothing back: later
    /// events of its key overtake it. Resolution: 1 us on PostgreSQL, 1 ms (rounded up) on SQLite.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = (!delay.is_zero()).then_some(delay);
        self
    }

    /// Retries before it is FAILED, instead of the queue's setting; 0 means one try.
    #[must_use]
    pub fn max_retries(mut self, max_retries: u32) -> Self {
        self.max_retries = Some(max_retries);
        self
    }

    /// Higher goes first, in queues with `ordering = "none"`; others ignore it. Only values above 0 are urgent.
    #[must_use]
    pub fn priority(mut self, priority: i16) -> Self {
        self.priority = priority;
        self
    }

    /// With the current span's `traceparent` among its headers, unless it has one or there is no trace. Every
    /// `enqueue` does it; call it where the event is made in another span than it is enqueued in.
    #[cfg(feature = "opentelemetry")]
    #[must_use]
    pub fn traced(self) -> Self {
        if self.headers.iter().any(|(name, _)| name == "traceparent") {
            return self;
        }
        match crate::trace::current_traceparent() {
            Some(traceparent) => self.header("traceparent", traceparent),
            None => self,
        }
    }

    /// Checks the limits, before any statement is sent. Every `enqueue` does it; call it to know earlier.
    ///
    /// # Errors
    /// Names the field and what is allowed.
    pub fn validate(&self) -> Result<(), EnqueueError> {
        limits::check(self)
    }

    /// The id that the row will have.
    #[must_use]
    pub fn event_id(&self) -> Uuid {
        match &self.identity {
            Identity::Random(id) | Identity::Given(id) => *id,
            Identity::Key(key) => idempotent_id(&self.queue, key),
        }
    }
}

impl NewEvent {
    pub(crate) fn key(&self) -> Option<&str> {
        match &self.identity {
            Identity::Key(key) => Some(key),
            Identity::Random(_) | Identity::Given(_) => None,
        }
    }
}

impl Payload {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Json(text) | Self::JsonText(text) => text.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Tombstone => 0,
        }
    }
}

impl fmt::Debug for NewEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header_names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("NewEvent")
            .field("id", &self.event_id())
            .field("queue", &self.queue)
            .field("aggregate_type", &self.aggregate_type)
            .field("aggregate_id", &self.aggregate_id)
            .field("event_type", &self.event_type)
            .field("header_names", &header_names)
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// The id that an idempotency key stands for: a UUIDv8 of the first 16 bytes of SHA-256 over the queue's name, a NUL
/// and the key, all UTF-8, with version and variant set.
///
/// Other languages that write to the same outbox compute the same. `("default", "invoice:123:send-email")` gives
/// `16eaf48c-094e-86b1-943e-b7ee0b31fd8c`.
#[must_use]
pub fn idempotent_id(queue: &str, key: &str) -> Uuid {
    let mut hash = Sha256::new();
    hash.update(queue);
    hash.update([0]);
    hash.update(key);
    let digest = hash.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    Uuid::new_v8(bytes)
}
