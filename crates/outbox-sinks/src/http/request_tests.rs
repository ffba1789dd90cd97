use std::collections::BTreeMap;

use bytes::Bytes;
use outbox_store::Event;
use uuid::Uuid;

use super::*;

fn config(more: &str) -> Config {
    serde_json::from_str(&format!(r#"{{"url": "https://example.com/hook?key=1"{more}}}"#)).unwrap()
}

fn template(more: &str) -> Result<Template, String> {
    let config = config(more);
    Template::new(&config, &config.target().unwrap())
}

fn event() -> Event {
    Event { id: Uuid::from_u128(7), ..Event::bare(1, "1") }
}

fn request(
    template: &Template,
    headers: &[(&str, &str)],
    body: Option<&'static [u8]>,
) -> Result<Request, String> {
    let event = event();
    let message = Message {
        event: &event,
        queue: "default",
        destination: Some("orders".into()),
        headers: headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        body: body.map(Bytes::from_static),
    };
    template.request(&message, OffsetDateTime::UNIX_EPOCH + time::Duration::seconds(99))
}

fn sent(request: &Request) -> BTreeMap<&str, &[u8]> {
    request.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect()
}

#[test]
fn an_event_is_a_post_with_its_headers_as_they_are() {
    let template = template(r#", "headers": {"X-Api-Key": "k1"}, "bearer_token": "t1""#).unwrap();
    let headers =
        [("outbox-id", "7"), ("Tenant", "acme & söns"), ("ce-own", "50 %"), ("content-type", "text/plain")];
    let request = request(&template, &headers, Some(b"body")).unwrap();
    assert_eq!((request.method(), request.url().as_str()), (&Method::POST, "https://example.com/hook?key=1"));
    assert_eq!(request.body().unwrap().as_bytes(), Some(b"body".as_slice()));
    let sent = sent(&request);
    for (name, value) in [
        ("outbox-id", "7"),
        ("tenant", "acme & söns"),
        ("ce-own", "50 %"),
        ("content-type", "text/plain"),
        ("x-api-key", "k1"),
        ("authorization", "Bearer t1"),
        ("outbox-destination", "orders"),
        ("webhook-id", "00000000-0000-0000-0000-000000000007"),
        ("webhook-timestamp", "99"),
    ] {
        assert_eq!(sent[name], value.as_bytes(), "{name}");
    }
    assert!(!sent.contains_key("webhook-signature"));
    assert!(!format!("{:?}", request.headers()).contains("t1"));
}

#[test]
fn a_tombstone_has_no_content_type_and_an_empty_body_has_one() {
    let template = template("").unwrap();
    let headers = [("outbox-id", "7"), ("content-type", "application/json")];
    let tombstone = request(&template, &headers, None).unwrap();
    assert!(!sent(&tombstone).contains_key("content-type"));
    assert_eq!(tombstone.body().unwrap().as_bytes(), Some(b"".as_slice()));
    assert!(sent(&request(&template, &headers, Some(b"")).unwrap()).contains_key("content-type"));
}

#[test]
fn attributes_of_a_binary_cloudevent_are_percent_encoded() {
    let template = template("").unwrap();
    let headers = [("ce-specversion", "1.0"), ("ce-subject", "Euro € 50 % \"x\""), ("own", "50 %")];
    let request = request(&template, &headers, Some(b"")).unwrap();
    assert_eq!(sent(&request)["ce-subject"], b"Euro%20%E2%82%AC%2050%20%25%20%22x%22");
    assert_eq!(sent(&request)["own"], b"50 %");
}

#[test]
fn a_header_that_cannot_be_sent_is_named() {
    let template = template(r#", "headers": {"X-Api-Key": "k1"}"#).unwrap();
    for (name, value, says) in [
        ("tenant", "a\r\nhost: evil", "\"tenant\" has the control character 0x0d"),
        ("tenant", "a\0", "\"tenant\" has the control character 0x00"),
        ("bad name", "x", "\"bad name\" has a name"),
        ("bad\r\nname", "x", "\"bad\\r\\nname\" has a name"),
        ("", "x", "\"\" has a name"),
        ("Content-Length", "1", "\"Content-Length\" cannot be set"),
        ("transfer-encoding", "chunked", "\"transfer-encoding\" cannot be set"),
        ("webhook-signature", "v1,x", "\"webhook-signature\" cannot be set"),
        ("x-api-key", "x", "\"x-api-key\" cannot be set"),
    ] {
        let error = request(&template, &[(name, value)], Some(b"")).unwrap_err();
        assert!(error.contains(says) && !error.contains(['\r', '\n']) && !error.contains("evil"), "{error}");
    }
}

#[test]
fn credentials_come_from_one_place() {
    let authorization = |template: &Template| template.headers[AUTHORIZATION].to_str().unwrap().to_owned();
    let named = template(r#", "username": "u", "password": "p""#).unwrap();
    assert_eq!(authorization(&named), "Basic dTpw");
    let url = Url::parse("https://u:p%40%zz@example.com/").unwrap();
    let in_url = Template::new(&config(""), &url).unwrap();
    assert_eq!(authorization(&in_url), format!("Basic {}", STANDARD.encode("u:p@%zz")));
    assert_eq!(in_url.url.as_str(), "https://example.com/");
    for (more, says) in [
        (r#", "username": "u", "bearer_token": "hunter2""#, "keep one"),
        (r#", "password": "hunter2""#, "needs `username`"),
        (r#", "bearer_token": "hunter2", "headers": {"Authorization": "hunter2"}"#, "keep one"),
        (r#", "bearer_token": "hunter2\n""#, "`bearer_token`"),
        (r#", "headers": {"Host": "hunter2"}"#, "\"Host\""),
        (r#", "headers": {"x": "hunter2\n"}"#, "\"x\""),
        (r#", "signing_secret": "hunter2""#, "`signing_secret`"),
    ] {
        let error = template(more).err().expect(more);
        assert!(error.contains(says) && !error.contains("hunter2"), "{error}");
    }
}
