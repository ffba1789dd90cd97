//! What `NewEvent` refuses, and how it says so.

use std::time::Duration;

use outbox_schema::*;

fn event() -> NewEvent {
    NewEvent::new("Order", "101")
}

fn refusal(event: NewEvent) -> String {
    event.validate().expect_err("must be refused").to_string()
}

#[test]
fn an_event_at_every_limit_is_accepted() {
    let letters = |length| "x".repeat(length);
    let mut event = NewEvent::new(letters(MAX_AGGREGATE_TYPE_BYTES), letters(MAX_AGGREGATE_ID_BYTES))
        .event_type(letters(MAX_EVENT_TYPE_BYTES))
        .queue(letters(MAX_QUEUE_BYTES))
        .destination(letters(MAX_DESTINATION_BYTES))
        .content_type(letters(MAX_CONTENT_TYPE_BYTES))
        .idempotency_key(letters(MAX_IDEMPOTENCY_KEY_BYTES))
        .bytes(vec![0; MAX_PAYLOAD_BYTES])
        .max_retries(i32::MAX as u32)
        .delay(MAX_DELAY);
    for number in 0..MAX_HEADERS {
        let name = format!("{number:03}{}", letters(MAX_HEADER_NAME_BYTES - 3));
        event = event.header(name, letters(MAX_HEADER_VALUE_BYTES));
    }
    event.validate().unwrap();
}

#[test]
fn a_refusal_names_the_field_and_the_limit() {
    let too_long = |length: usize| "x".repeat(length + 1);
    let headers = (0..=MAX_HEADERS).map(|number| (format!("h{number}"), ""));
    let cases = [
        (NewEvent::new(too_long(255), "1"), "aggregate_type: 256 bytes, at most 255 are allowed"),
        (NewEvent::new("Order", too_long(1024)), "aggregate_id: 1025 bytes, at most 1024 are allowed"),
        (event().event_type(too_long(255)), "event_type: 256 bytes, at most 255 are allowed"),
        (event().queue(too_long(128)), "queue: 129 bytes, at most 128 are allowed"),
        (event().destination(too_long(1024)), "destination: 1025 bytes, at most 1024 are allowed"),
        (event().content_type(too_long(255)), "content_type: 256 bytes, at most 255 are allowed"),
        (event().idempotency_key(too_long(1024)), "idempotency_key: 1025 bytes, at most 1024 are allowed"),
        (event().headers(headers), "headers: 65 headers, at most 64 are allowed"),
        (event().header(too_long(255), ""), "header name: 256 bytes, at most 255 are allowed"),
        (event().header("name", too_long(4096)), "header value: 4097 bytes, at most 4096 are allowed"),
        (
            event().bytes(vec![0; MAX_PAYLOAD_BYTES + 1]),
            "payload: 16777217 bytes, at most 16777216 are allowed",
        ),
        (event().max_retries(1 << 31), "max_retries: 2147483648 retries, at most 2147483647 are allowed"),
        (
            event().delay(MAX_DELAY + Duration::from_secs(1)),
            "delay: 315360001 seconds, at most 315360000 are allowed",
        ),
    ];
    for (event, expected) in cases {
        assert_eq!(refusal(event), expected);
    }
}

#[test]
fn lengths_count_bytes() {
    assert_eq!(
        refusal(NewEvent::new("é".repeat(128), "1")),
        "aggregate_type: 256 bytes, at most 255 are allowed"
    );
}

#[test]
fn what_no_broker_could_take_is_refused() {
    let cases = [
        (NewEvent::new("", "1"), "aggregate_type: must not be empty"),
        (NewEvent::new("Order", ""), "aggregate_id: must not be empty"),
        (event().queue(""), "queue: must not be empty"),
        (event().event_type(""), "event_type: must not be empty"),
        (event().idempotency_key(""), "idempotency_key: must not be empty"),
        (NewEvent::new("Order", "1\0"), "aggregate_id: must not contain NUL, CR or LF"),
        (event().destination("a\r\nb"), "destination: must not contain NUL, CR or LF"),
        (event().header("trace", "a\nb"), "header value: of \"trace\" must not contain NUL, CR or LF"),
        (event().header("trace", "a\0b"), "header value: of \"trace\" must not contain NUL, CR or LF"),
    ];
    for (event, expected) in cases {
        assert_eq!(refusal(event), expected);
    }
}

#[test]
fn header_names_are_tokens_and_not_the_relays_own() {
    event().header("X-Trace_1.a~b", "").header("Outboxed", "").header("outbox", "").validate().unwrap();
    for name in ["", "a b", "a:b", "a\r\nb", "naïve"] {
        assert!(refusal(event().header(name, "")).starts_with("header name: "), "{name:?}");
    }
    for name in ["outbox-id", "OUTBOX-anything", "Outbox-"] {
        assert!(refusal(event().header(name, "")).ends_with("names beginning outbox- are the relay's own"));
    }
}

#[test]
fn json_text_must_be_json() {
    event().json_text(r#"{"a": [1e999, "\u0000\ud800"]}"#).validate().unwrap();
    event().json_text("[".repeat(10_000) + &"]".repeat(10_000)).validate().unwrap();
    for text in ["", "{", "{} {}", "plain", "'x'", "\"\0\""] {
        assert!(refusal(event().json_text(text)).starts_with("payload: not valid JSON: "), "{text:?}");
    }
    // Bytes may be anything.
    event().bytes("plain\0").validate().unwrap();
}

#[test]
fn what_serde_cannot_serialise_is_an_error_of_the_payload() {
    let map = std::collections::HashMap::from([([1, 2], 3)]);
    let error = event().json(&map).unwrap_err();
    assert!(error.to_string().starts_with("payload: cannot be serialised to JSON: "), "{error}");
}

#[test]
fn idempotent_ids_are_as_documented() {
    // Computed with another implementation: Python's hashlib and uuid.
    let id = idempotent_id("default", "invoice:123:send-email");
    assert_eq!(id.to_string(), "16eaf48c-094e-86b1-943e-b7ee0b31fd8c");
    assert_eq!(id.get_version_num(), 8);
    assert_eq!(event().idempotency_key("invoice:123:send-email").event_id(), id);
    // The queue counts, whichever is set first.
    let mail = event().idempotency_key("invoice:123:send-email").queue("mail");
    assert_ne!(mail.event_id(), id);
    assert_eq!(mail.event_id(), event().queue("mail").idempotency_key("invoice:123:send-email").event_id());
    // The separator keeps (queue, key) pairs apart.
    assert_ne!(idempotent_id("a", "bc"), idempotent_id("ab", "c"));
}

#[test]
fn new_ids_are_ordered_uuid_v7() {
    let ids: Vec<_> = (0..1000).map(|_| event().event_id()).collect();
    assert!(ids.is_sorted());
    assert!(ids.iter().all(|id| id.get_version_num() == 7));
}

#[test]
fn debug_shows_neither_payload_nor_header_values() {
    let event = event().header("authorization", "Bearer s3cret").json_text("\"s3cret\"");
    let shown = format!("{event:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    assert!(shown.contains("authorization"), "{shown}");
}
