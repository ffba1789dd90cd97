//! What the relay writes, spelled out; that it does write so is seen with real brokers, in the end-to-end tests.

use time::macros::datetime;

use super::*;

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

const RAW: [(&str, &str); 10] = [
    ("outbox-id", "01980000-0000-7000-8000-000000000001"),
    ("outbox-seq", "42"),
    ("outbox-queue", "default"),
    ("outbox-aggregate-type", "Order Item"),
    ("outbox-aggregate-id", "Zürich 7%"),
    ("outbox-event-type", "OrderCreated"),
    ("outbox-created-at", "2026-01-02T01:04:05.678Z"),
    ("content-type", "application/json"),
    ("traceparent", TRACE),
    ("tenant", "acme"),
];

const ATTRIBUTES: [(&str, &str); 7] = [
    ("specversion", "1.0"),
    ("id", "01980000-0000-7000-8000-000000000001"),
    ("source", "/Order%20Item"),
    ("type", "OrderCreated"),
    ("subject", "Zürich 7%"),
    ("time", "2026-01-02T01:04:05.678Z"),
    ("outboxseq", "42"),
];

fn expected() -> EventMeta {
    EventMeta {
        id: Uuid::from_u128(0x0198_0000_0000_7000_8000_0000_0000_0001),
        seq: 42,
        queue: Some("default".to_owned()),
        aggregate_type: "Order Item".to_owned(),
        aggregate_id: "Zürich 7%".to_owned(),
        event_type: Some("OrderCreated".to_owned()),
        created_at: datetime!(2026-01-02 01:04:05.678 UTC),
        content_type: Some("application/json".to_owned()),
        traceparent: Some(TRACE.to_owned()),
    }
}

fn expected_of_a_cloudevent() -> EventMeta {
    EventMeta { queue: None, ..expected() }
}

/// The CloudEvent's attributes under this prefix, and what is beside them.
fn cloudevent(prefix: &str) -> Vec<(String, String)> {
    let attributes = ATTRIBUTES.map(|(name, value)| (format!("{prefix}{name}"), value.to_owned()));
    let beside = RAW[7..].iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    attributes.into_iter().chain(beside).collect()
}

#[test]
fn the_raw_envelope_is_the_same_everywhere() {
    let upper = RAW.map(|(name, value)| (name.to_uppercase(), value.as_bytes().to_vec()));
    assert_eq!(EventMeta::from_kafka(RAW), Ok(expected()));
    assert_eq!(EventMeta::from_redis(RAW), Ok(expected()));
    assert_eq!(EventMeta::from_nats(RAW), Ok(expected()));
    assert_eq!(EventMeta::from_http(upper), Ok(expected()));
    let mut without_type = RAW.to_vec();
    without_type.remove(7);
    assert_eq!(EventMeta::from_amqp(Some("application/json"), without_type), Ok(expected()));
}

#[test]
fn cloudevents_are_named_as_each_binding_says() {
    let event = Ok(expected_of_a_cloudevent());
    assert_eq!(EventMeta::from_kafka(cloudevent("ce_")), event);
    assert_eq!(EventMeta::from_redis(cloudevent("ce-")), event);
    for prefix in ["cloudEvents_", "cloudEvents:"] {
        assert_eq!(EventMeta::from_amqp(Some("application/json"), cloudevent(prefix)), event);
    }
    let mut encoded = cloudevent("ce-");
    encoded[4].1 = "Z%C3%BCrich%207%25".to_owned();
    encoded[2].1 = "/Order%2520Item".to_owned();
    assert_eq!(EventMeta::from_nats(encoded.clone()), event);
    assert_eq!(EventMeta::from_http(encoded), event);
    for wrong in [cloudevent("ce-"), cloudevent("")] {
        assert_eq!(EventMeta::from_kafka(wrong), Err(MetaError::NotAnEvent));
    }
}

#[test]
fn what_is_optional_may_be_missing() {
    let few: Vec<_> = RAW
        .into_iter()
        .filter(|(name, _)| name.starts_with("outbox-") && !name.ends_with("event-type"))
        .collect();
    let bare = EventMeta { event_type: None, content_type: None, traceparent: None, ..expected() };
    assert_eq!(EventMeta::from_kafka(few), Ok(bare));
    let mut without_subject = cloudevent("ce-");
    without_subject.remove(4);
    let no_key = EventMeta { aggregate_id: String::new(), ..expected_of_a_cloudevent() };
    assert_eq!(EventMeta::from_redis(without_subject), Ok(no_key));
}

#[test]
fn an_applications_own_headers_do_not_stand_in_for_the_relays() {
    let mut headers = RAW.to_vec();
    headers.extend([("ce_id", "x"), ("ce_outboxseq", "y"), ("outbox-seq", "7"), ("Content-Type", "a/b")]);
    assert_eq!(EventMeta::from_kafka(headers), Ok(expected()));
}

#[test]
fn a_document_is_read_without_its_payload() {
    let members = ATTRIBUTES.map(|(name, value)| format!("\"{name}\":\"{value}\"")).join(",");
    let body = format!("{{{members},\"datacontenttype\":\"application/json\",\"data\":{{\"id\": 1.00}}}}");
    let meta = EventMeta::from_cloudevent(body.as_bytes()).unwrap();
    assert_eq!(meta, EventMeta { traceparent: None, ..expected_of_a_cloudevent() });
    let headers = [("content-type", "application/cloudevents+json"), ("Traceparent", TRACE)];
    assert_eq!(meta.with_headers(headers), expected_of_a_cloudevent());
}

#[test]
fn a_line_is_read_without_its_payload() {
    let line = format!(
        r#"{{"id":"01980000-0000-7000-8000-000000000001","seq":42,"queue":"default","aggregate_type":"Order Item","aggregate_id":"Zürich 7%","event_type":"OrderCreated","destination":null,"headers":{{"traceparent":"{TRACE}"}},"created_at":"2026-01-02T01:04:05.678Z","payload":{{"id": 1.00}}}}"#
    );
    let meta = EventMeta::from_line(format!("{line}\n").as_bytes()).unwrap();
    assert_eq!(meta, EventMeta { content_type: None, ..expected() });
    let typed = line.replace("\"headers\":{", "\"headers\":{\"Content-Type\":\"application/json\",");
    assert_eq!(EventMeta::from_line(typed.as_bytes()), Ok(expected()));
}

#[test]
fn errors_name_what_is_wrong_and_show_nothing() {
    let with = |name: &str, value: &str| {
        let mut headers = RAW.map(|(name, value)| (name, value.to_owned())).to_vec();
        headers.retain(|(one, _)| *one != name);
        if !value.is_empty() {
            headers.push((RAW.iter().find(|(one, _)| *one == name).unwrap().0, value.to_owned()));
        }
        EventMeta::from_kafka(headers).unwrap_err().to_string()
    };
    assert!(with("outbox-id", "").starts_with("no `outbox-id` and no CloudEvents attribute `id`"));
    assert_eq!(with("outbox-id", "secret"), "`outbox-id` is not a UUID");
    assert_eq!(with("outbox-seq", "secret"), "`outbox-seq` is not a whole number");
    assert_eq!(with("outbox-seq", ""), "`outbox-seq` is missing: the relay always writes it");
    assert_eq!(with("outbox-created-at", "secret"), "`outbox-created-at` is not a time as RFC 3339 has it");
    let foreign = cloudevent("ce_").into_iter().map(|(name, value)| (name, value.replace("/Order", "urn:x")));
    let foreign = EventMeta::from_kafka(foreign).unwrap_err().to_string();
    assert_eq!(foreign, "`source` is not `/` and an aggregate type");
    let not_json = EventMeta::from_line(b"{\"id\":\"secret\"}").unwrap_err().to_string();
    assert_eq!(not_json, "not the expected JSON document (line 1, column 14)");
    assert!(
        EventMeta::from_cloudevent(b"secret").unwrap_err().to_string().starts_with("not the expected JSON")
    );
}

#[test]
fn what_is_no_percent_encoding_stays_as_it_is() {
    let mut headers = cloudevent("ce-");
    headers[4].1 = "100%, %zz %c3%bc%".to_owned();
    assert_eq!(EventMeta::from_http(headers).unwrap().aggregate_id, "100%, %zz ü%");
}
