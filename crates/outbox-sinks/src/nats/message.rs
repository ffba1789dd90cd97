//! What of a message NATS can carry, and how.

use std::borrow::Cow;
use std::str::FromStr;

use async_nats::{HeaderMap, HeaderName, HeaderValue};

use crate::Message;

/// The header by which JetStream knows a repetition.
const MESSAGE_ID: &str = "Nats-Msg-Id";

/// The server acts upon headers that begin so.
const RESERVED: &str = "nats-";

/// Longest subject in bytes: a server closes the connection over a longer line (`max_control_line`, 4 KiB), and nobody
/// could tell which message is to blame.
const SUBJECT_BYTES: usize = 2048;

/// Headers of the message, its id among them.
///
/// # Errors
/// One line that names the header that cannot be one.
pub(super) fn headers(message: &Message<'_>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    headers.insert(MESSAGE_ID, message.event.id.to_string());
    let cloudevent = message.headers.iter().any(|(name, _)| name == "ce-specversion");
    for (name, value) in &message.headers {
        if name.get(..RESERVED.len()).is_some_and(|start| start.eq_ignore_ascii_case(RESERVED)) {
            return Err(format!(
                "header `{name}`: what begins with Nats- is an order to the server; rename it"
            ));
        }
        let attribute = cloudevent && name.starts_with("ce-");
        let value = if attribute { percent_encoded(value) } else { Cow::Borrowed(value.as_ref()) };
        headers.append(header_name(name)?, header_value(name, &value)?);
        if cloudevent && name == "content-type" {
            headers.append("ce-datacontenttype", header_value(name, &percent_encoded(&value))?);
        }
    }
    Ok(headers)
}

fn header_name(name: &str) -> Result<HeaderName, String> {
    let refused = |_| format!("header `{}`: a name is of printable ASCII without `:`", name.escape_debug());
    if name.is_empty() {
        return Err("a header has no name".to_owned());
    }
    HeaderName::from_str(name).map_err(refused)
}

fn header_value(name: &str, value: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_str(value)
        .map_err(|_| format!("header `{name}`: its value holds a line break (CR or LF)"))
}

/// As the CloudEvents binding for NATS wants its attributes: printable ASCII, and none of space, `"` and `%`.
fn percent_encoded(value: &str) -> Cow<'_, str> {
    let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'%';
    if value.bytes().all(plain) {
        return value.into();
    }
    let encode = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    value.bytes().map(encode).collect::<String>().into()
}

/// Where it goes.
///
/// # Errors
/// One line: why nothing can be published there.
pub(super) fn subject<'m>(message: &'m Message<'_>) -> Result<&'m str, String> {
    let subject = message.destination.as_deref().unwrap_or_default();
    let shown = || subject.chars().take(100).collect::<String>();
    let refused = |why: &str| Err(format!("subject \"{}\": {why}", shown().escape_debug()));
    if subject.len() > SUBJECT_BYTES {
        return refused("longer than 2048 bytes");
    }
    if subject.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return refused("may hold no white space");
    }
    if subject.split('.').any(|token| token.is_empty() || token == "*" || token == ">") {
        return refused("must be of names with dots between them, without wildcards");
    }
    if subject.starts_with("$JS.") || subject.starts_with("$SYS.") {
        return refused("belongs to the server");
    }
    Ok(subject)
}

#[cfg(test)]
mod tests {
    use outbox_store::Event;

    use uuid::Uuid;

    use super::*;

    fn event() -> Event {
        Event { id: Uuid::nil(), ..Event::bare(1, "1") }
    }

    fn message<'a>(event: &'a Event, subject: &'a str, headers: &[(&'a str, &'a str)]) -> Message<'a> {
        Message {
            event,
            queue: "default",
            destination: Some(subject.into()),
            headers: headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            body: None,
        }
    }

    #[test]
    fn a_header_that_cannot_be_one_is_named() {
        let event = event();
        for (name, value, expected) in [
            ("tenant", "a\r\nb", "header `tenant`: its value holds a line break"),
            ("tenant", "a\nb", "line break"),
            ("ten\r\nant", "a", "header `ten\\r\\nant`"),
            ("ten:ant", "a", "header `ten:ant`"),
            ("", "a", "no name"),
            ("nats-Rollup", "all", "header `nats-Rollup`"),
        ] {
            let error = headers(&message(&event, "a", &[(name, value)])).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let headers = headers(&message(&event, "a", &[("tenant", "ä & sons")])).unwrap();
        assert_eq!(headers.get("tenant").unwrap().as_str(), "ä & sons");
        assert_eq!(headers.get(MESSAGE_ID).unwrap().as_str(), Uuid::nil().to_string());
    }

    #[test]
    fn cloudevents_attributes_are_as_their_binding_wants_them() {
        let event = event();
        let given = [
            ("ce-specversion", "1.0"),
            ("ce-subject", "ä \"1\" 5%"),
            ("content-type", "text/plain; charset=utf-8"),
            ("tenant", "a b"),
        ];
        let headers = headers(&message(&event, "a", &given)).unwrap();
        let get = |name: &str| headers.get(name).unwrap().as_str().to_owned();
        assert_eq!(get("ce-subject"), "%C3%A4%20%221%22%205%25");
        assert_eq!(get("content-type"), "text/plain; charset=utf-8");
        assert_eq!(get("ce-datacontenttype"), "text/plain;%20charset=utf-8");
        assert_eq!(get("tenant"), "a b");
    }

    #[test]
    fn subjects_that_nobody_could_publish_to() {
        let event = event();
        let long = "a".repeat(SUBJECT_BYTES + 1);
        for bad in
            ["", "a b", "a..b", ".a", "a.", "a.*", "a.>", "a\r\nPUB b", "$JS.API.STREAM.DELETE.A", &long]
        {
            let error = subject(&message(&event, bad, &[])).expect_err(bad);
            assert!(error.starts_with("subject \"") && error.len() < 300, "{error}");
        }
        for good in ["a", "orders.created", "$KV.bucket.key", "a-b.c_d.ä"] {
            assert_eq!(subject(&message(&event, good, &[])), Ok(good));
        }
    }
}
