//! What an event may have. Two reasons: a row that cannot be delivered is better refused where it is made, and
//! PostgreSQL's indexes on queue and key hold at most about 2,700 bytes an entry.

use std::time::Duration;

use crate::EnqueueError;
use crate::event::{NewEvent, Payload};

/// Longest `aggregate_type`, in bytes.
pub const MAX_AGGREGATE_TYPE_BYTES: usize = 255;
/// Longest `aggregate_id`, in bytes.
pub const MAX_AGGREGATE_ID_BYTES: usize = 1024;
/// Longest `event_type`, in bytes.
pub const MAX_EVENT_TYPE_BYTES: usize = 255;
/// Longest `queue`, in bytes.
pub const MAX_QUEUE_BYTES: usize = 128;
/// Longest `destination`, in bytes.
pub const MAX_DESTINATION_BYTES: usize = 1024;
/// Longest `content_type`, in bytes.
pub const MAX_CONTENT_TYPE_BYTES: usize = 255;
/// Longest idempotency key, in bytes.
pub const MAX_IDEMPOTENCY_KEY_BYTES: usize = 1024;
/// Most headers of one event.
pub const MAX_HEADERS: usize = 64;
/// Longest header name, in bytes.
pub const MAX_HEADER_NAME_BYTES: usize = 255;
/// Longest header value, in bytes.
pub const MAX_HEADER_VALUE_BYTES: usize = 4096;
/// Largest payload, in bytes. Many brokers accept less by default; put larger things elsewhere and send where.
pub const MAX_PAYLOAD_BYTES: usize = 16 << 20;
/// Longest delay.
pub const MAX_DELAY: Duration = Duration::from_secs(3650 * 24 * 60 * 60);

const MAX_RETRIES: u32 = i32::MAX.unsigned_abs();

pub(crate) fn check(event: &NewEvent) -> Result<(), EnqueueError> {
    check_text("aggregate_type", Some(&event.aggregate_type), MAX_AGGREGATE_TYPE_BYTES)?;
    check_text("aggregate_id", Some(&event.aggregate_id), MAX_AGGREGATE_ID_BYTES)?;
    check_text("event_type", event.event_type.as_deref(), MAX_EVENT_TYPE_BYTES)?;
    check_text("queue", Some(&event.queue), MAX_QUEUE_BYTES)?;
    check_text("destination", event.destination.as_deref(), MAX_DESTINATION_BYTES)?;
    check_text("content_type", event.content_type.as_deref(), MAX_CONTENT_TYPE_BYTES)?;
    check_text("idempotency_key", event.key(), MAX_IDEMPOTENCY_KEY_BYTES)?;
    at_most("headers", event.headers.len(), MAX_HEADERS, "headers")?;
    for (name, value) in &event.headers {
        check_header(name, value)?;
    }
    if let Some(delay) = event.delay.filter(|delay| *delay > MAX_DELAY) {
        return Err(too_large("delay", delay.as_secs(), MAX_DELAY.as_secs(), "seconds"));
    }
    if let Some(retries) = event.max_retries.filter(|retries| *retries > MAX_RETRIES) {
        return Err(too_large("max_retries", retries.into(), MAX_RETRIES.into(), "retries"));
    }
    check_payload(&event.payload)
}

fn check_text(field: &'static str, text: Option<&str>, limit: usize) -> Result<(), EnqueueError> {
    let Some(text) = text else { return Ok(()) };
    at_most(field, text.len(), limit, "bytes")?;
    if text.is_empty() {
        return Err(invalid(field, "must not be empty"));
    }
    // All of these may end up in a broker's header or address; PostgreSQL has no text with NUL in it.
    if text.contains(['\0', '\r', '\n']) {
        return Err(invalid(field, "must not contain NUL, CR or LF"));
    }
    Ok(())
}

fn check_header(name: &str, value: &str) -> Result<(), EnqueueError> {
    at_most("header name", name.len(), MAX_HEADER_NAME_BYTES, "bytes")?;
    at_most("header value", value.len(), MAX_HEADER_VALUE_BYTES, "bytes")?;
    if name.is_empty() || !name.bytes().all(is_token_byte) {
        return Err(invalid(
            "header name",
            format!("{name:?} must be made of ASCII letters, digits and !#$%&'*+-.^_`|~ (as in HTTP)"),
        ));
    }
    if name.get(..7).is_some_and(|prefix| prefix.eq_ignore_ascii_case("outbox-")) {
        return Err(invalid("header name", format!("{name:?}: names beginning outbox- are the relay's own")));
    }
    if value.contains(['\0', '\r', '\n']) {
        return Err(invalid("header value", format!("of {name:?} must not contain NUL, CR or LF")));
    }
    Ok(())
}

fn check_payload(payload: &Payload) -> Result<(), EnqueueError> {
    at_most("payload", payload.len(), MAX_PAYLOAD_BYTES, "bytes")?;
    if let Payload::JsonText(text) = payload {
        serde_json::from_str::<serde::de::IgnoredAny>(text).map_err(EnqueueError::NotJson)?;
    }
    Ok(())
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn at_most(field: &'static str, actual: usize, limit: usize, unit: &'static str) -> Result<(), EnqueueError> {
    if actual > limit {
        return Err(too_large(field, actual as u64, limit as u64, unit));
    }
    Ok(())
}

fn too_large(field: &'static str, actual: u64, limit: u64, unit: &'static str) -> EnqueueError {
    EnqueueError::TooLarge { field, actual, limit, unit }
}

fn invalid(field: &'static str, reason: impl Into<String>) -> EnqueueError {
    EnqueueError::Invalid { field, reason: reason.into() }
}
