//! Envelopes, header by header.

use time::macros::datetime;
use uuid::Uuid;

use super::*;

fn event() -> Event {
    Event {
        id: Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0001),
        aggregate_type: "Order Item".into(),
        event_type: Some("OrderCreated".into()),
        payload: Payload::Json(Bytes::from_static(b"{\"a\": 1.00}")),
        headers: Some(r#"{"traceparent":"00-ab-cd-01","tenant":"a\"b"}"#.into()),
        created_at: datetime!(2026-01-02 03:04:05.678 +2),
        ..Event::bare(42, "101")
    }
}

fn lines(encoded: &Encoded<'_>) -> Vec<String> {
    encoded.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect()
}

#[test]
fn raw_says_all_in_headers_and_passes_the_payload_on() {
    let event = event();
    let encoded = encode(Envelope::Raw, "default", &event).unwrap();
    assert_eq!(
        lines(&encoded),
        [
            "outbox-id: 01980000-0000-7000-8000-000000000001",
            "outbox-seq: 42",
            "outbox-queue: default",
            "outbox-aggregate-type: Order Item",
            "outbox-aggregate-id: 101",
            "outbox-event-type: OrderCreated",
            "outbox-created-at: 2026-01-02T01:04:05.678Z",
            "content-type: application/json",
            "traceparent: 00-ab-cd-01",
            "tenant: a\"b",
        ]
    );
    let payload = event.payload.bytes().unwrap();
    assert_eq!(encoded.body.unwrap().as_ptr(), payload.as_ptr(), "the payload was copied");
}

#[test]
fn a_tombstone_has_neither_body_nor_content_type() {
    let event = Event { payload: Payload::Tombstone, headers: None, event_type: None, ..event() };
    let encoded = encode(Envelope::Raw, "default", &event).unwrap();
    assert_eq!(encoded.body, None);
    assert!(
        lines(&encoded).iter().all(|line| !line.starts_with("content-type") && !line.contains("event-type"))
    );
}

#[test]
fn the_content_type_is_the_columns_else_the_headers_else_the_payloads() {
    let of = |column: Option<&str>, headers: Option<&str>| {
        let event =
            Event { content_type: column.map(Into::into), headers: headers.map(Into::into), ..event() };
        let encoded = encode(Envelope::Raw, "q", &event).unwrap();
        let mut found: Vec<_> = lines(&encoded)
            .into_iter()
            .filter(|line| line.to_lowercase().starts_with("content-type"))
            .collect();
        assert_eq!(found.len(), 1);
        found.remove(0)
    };
    assert_eq!(of(None, None), "content-type: application/json");
    assert_eq!(of(None, Some(r#"{"Content-Type":"a/b"}"#)), "content-type: a/b");
    assert_eq!(of(Some("c/d"), Some(r#"{"Content-Type":"a/b"}"#)), "content-type: c/d");
}

#[test]
fn bad_headers_fail_with_what_to_do() {
    let table = [
        ("[]", "JSON object"),
        ("{\"a\": 1}", "values are strings"),
        ("{\"a\": \"b\"} x", "JSON object"),
        ("{", "JSON object"),
        (r#"{"Outbox-Id": "x"}"#, "`outbox-`"),
    ];
    for (headers, expected) in table {
        let event = Event { headers: Some(headers.into()), ..event() };
        let error = encode(Envelope::Raw, "q", &event).unwrap_err();
        assert!(error.starts_with("headers: ") && error.contains(expected), "{headers}: {error}");
    }
    let event = Event { headers: Some(r#"{"ce-id": "x"}"#.into()), ..event() };
    assert!(encode(Envelope::Raw, "q", &event).is_ok());
    assert!(encode(Envelope::CloudeventsBinary, "q", &event).unwrap_err().contains("`ce-`"));
}

#[test]
fn cloudevents_binary_has_the_attributes_as_headers() {
    let event = event();
    let encoded = encode(Envelope::CloudeventsBinary, "default", &event).unwrap();
    assert_eq!(
        lines(&encoded),
        [
            "ce-specversion: 1.0",
            "ce-id: 01980000-0000-7000-8000-000000000001",
            "ce-source: /Order%20Item",
            "ce-type: OrderCreated",
            "ce-subject: 101",
            "ce-time: 2026-01-02T01:04:05.678Z",
            "ce-outboxseq: 42",
            "content-type: application/json",
            "traceparent: 00-ab-cd-01",
            "tenant: a\"b",
        ]
    );
}

#[test]
fn cloudevents_structured_is_one_document() {
    let document = |payload: Payload, content_type: Option<&str>| {
        let event =
            Event { payload, content_type: content_type.map(Into::into), event_type: None, ..event() };
        let encoded = encode(Envelope::CloudeventsStructured, "default", &event).unwrap();
        assert_eq!(lines(&encoded)[0], "content-type: application/cloudevents+json");
        String::from_utf8(encoded.body.unwrap().to_vec()).unwrap()
    };
    let json = document(Payload::Json(Bytes::from_static(b"{\"a\": 1.00}")), None);
    assert!(json.ends_with(r#","datacontenttype":"application/json","data":{"a": 1.00}}"#), "{json}");
    assert!(json.contains(r#""type":"Order Item""#) && json.contains(r#""outboxseq":"42""#), "{json}");
    let text = document(Payload::Text(Bytes::from_static(b"a\"b")), None);
    assert!(text.ends_with(r#","datacontenttype":"text/plain","data":"a\"b"}"#), "{text}");
    let binary = document(Payload::Binary(Bytes::from_static(b"\xff")), None);
    assert!(binary.ends_with(r#","data_base64":"/w=="}"#), "{binary}");
    let other = document(Payload::Json(Bytes::from_static(b"1")), Some("text/csv"));
    assert!(other.ends_with(r#","datacontenttype":"text/csv","data_base64":"MQ=="}"#), "{other}");
    let tombstone = document(Payload::Tombstone, None);
    assert!(!tombstone.contains("data"), "{tombstone}");
    for text in [json, text, binary, other, tombstone] {
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
    }
}
