//! Events and messages to deliver.

use std::time::Duration;

use bytes::Bytes;
use outbox_sinks::Message;
use outbox_store::{Event, Payload};
use tokio::time::Instant;
use uuid::Uuid;

/// An event with this key and JSON payload.
pub(crate) fn event(seq: i64, key: &str, json: &'static str) -> Event {
    Event {
        id: Uuid::from_u128(seq as u128),
        payload: Payload::Json(Bytes::from_static(json.as_bytes())),
        ..Event::bare(seq, key)
    }
}

/// The events as messages without destination and headers.
pub(crate) fn messages<'a>(events: &'a [Event]) -> Vec<Message<'a>> {
    let message = |event: &'a Event| Message {
        event,
        queue: "default",
        destination: None,
        headers: Vec::new(),
        body: event.payload.bytes().cloned(),
    };
    events.iter().map(message).collect()
}

/// Far enough away never to decide a test.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}
