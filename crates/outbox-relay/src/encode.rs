//! How an event becomes a message: its envelope. Payloads are passed on, never copied, except into a structured
//! CloudEvent, which is one document.

use std::borrow::Cow;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use outbox_store::{Event, Payload};
use serde::Deserializer as _;
use serde::de::{MapAccess, Visitor};
use time::format_description::well_known::Rfc3339;
use time::{OffsetDateTime, UtcOffset};

use crate::settings::Envelope;

/// Header names that begin so are the relay's own.
const RESERVED: &str = "outbox-";

/// Header names that begin so are CloudEvents attributes.
const RESERVED_BY_CLOUDEVENTS: &str = "ce-";

const CONTENT_TYPE: &str = "content-type";

type Headers<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// Headers and body of one message.
#[derive(Debug, PartialEq)]
pub(crate) struct Encoded<'a> {
    pub(crate) headers: Headers<'a>,
    pub(crate) body: Option<Bytes>,
}

/// Puts an event into its envelope.
///
/// # Errors
/// One line for `last_error`: what is wrong with the row's headers.
pub(crate) fn encode<'a>(
    envelope: Envelope,
    queue: &'a str,
    event: &'a Event,
) -> Result<Encoded<'a>, String> {
    let mut own = own_headers(envelope, event)?;
    let content_type = content_type(event, &mut own);
    let body = event.payload.bytes().cloned();
    let encoded = match envelope {
        Envelope::Raw => Encoded { headers: raw_headers(queue, event, content_type, own), body },
        Envelope::CloudeventsBinary => {
            Encoded { headers: cloudevents_headers(event, content_type, own), body }
        }
        Envelope::CloudeventsStructured => {
            let document = cloudevents_document(event, content_type.as_deref());
            let mut headers: Headers<'a> = Vec::with_capacity(1 + own.len());
            headers.push((CONTENT_TYPE.into(), "application/cloudevents+json".into()));
            headers.append(&mut own);
            Encoded { headers, body: Some(document) }
        }
    };
    Ok(encoded)
}

/// The application's own headers, in their order.
fn own_headers(envelope: Envelope, event: &Event) -> Result<Headers<'_>, String> {
    let Some(text) = event.headers.as_deref() else { return Ok(Vec::new()) };
    let mut json = serde_json::Deserializer::from_str(text);
    let headers =
        json.deserialize_map(HeadersVisitor).and_then(|headers| json.end().map(|()| headers)).map_err(
            |error| format!("headers: {error}; the column must hold a JSON object whose values are strings"),
        )?;
    for (name, _) in &headers {
        if begins_with(name, RESERVED) {
            return Err(format!(
                "headers: `{name}` begins with `{RESERVED}`, which the relay keeps for itself; rename it"
            ));
        }
        if envelope != Envelope::Raw && begins_with(name, RESERVED_BY_CLOUDEVENTS) {
            return Err(format!(
                "headers: `{name}` begins with `{RESERVED_BY_CLOUDEVENTS}`, which CloudEvents attributes use; rename it"
            ));
        }
    }
    Ok(headers)
}

fn begins_with(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// The row's column, else the application's header, which is taken out, else what the payload is.
fn content_type<'a>(event: &'a Event, own: &mut Headers<'a>) -> Option<Cow<'a, str>> {
    let mut from_header = None;
    own.retain_mut(|(name, value)| {
        let is_it = name.eq_ignore_ascii_case(CONTENT_TYPE);
        if is_it {
            from_header = Some(std::mem::take(value));
        }
        !is_it
    });
    let from_column = event.content_type.as_deref().map(Cow::Borrowed);
    from_column.or(from_header).or(event.payload.default_content_type().map(Cow::Borrowed))
}

fn raw_headers<'a>(
    queue: &'a str,
    event: &'a Event,
    content_type: Option<Cow<'a, str>>,
    mut own: Headers<'a>,
) -> Headers<'a> {
    let mut headers: Headers<'a> = Vec::with_capacity(8 + own.len());
    headers.push(("outbox-id".into(), event.id.to_string().into()));
    headers.push(("outbox-seq".into(), event.seq.to_string().into()));
    headers.push(("outbox-queue".into(), queue.into()));
    headers.push(("outbox-aggregate-type".into(), event.aggregate_type.as_str().into()));
    headers.push(("outbox-aggregate-id".into(), event.aggregate_id.as_str().into()));
    headers.extend(event.event_type.as_deref().map(|value| ("outbox-event-type".into(), value.into())));
    headers.push(("outbox-created-at".into(), rfc3339(event.created_at).into()));
    headers.extend(content_type.map(|value| (CONTENT_TYPE.into(), value)));
    headers.append(&mut own);
    headers
}

fn cloudevents_headers<'a>(
    event: &'a Event,
    content_type: Option<Cow<'a, str>>,
    mut own: Headers<'a>,
) -> Headers<'a> {
    let mut headers: Headers<'a> = Vec::with_capacity(8 + own.len());
    for (name, value) in attributes(event) {
        headers.push((format!("ce-{name}").into(), value));
    }
    headers.extend(content_type.map(|value| (CONTENT_TYPE.into(), value)));
    headers.append(&mut own);
    headers
}

/// CloudEvents attributes; `outboxseq` is a string because the specification's integers have 32 bits.
fn attributes(event: &Event) -> Vec<(&'static str, Cow<'_, str>)> {
    let mut attributes: Vec<(&'static str, Cow<'_, str>)> = Vec::with_capacity(7);
    attributes.push(("specversion", "1.0".into()));
    attributes.push(("id", event.id.to_string().into()));
    attributes.push(("source", format!("/{}", as_path(&event.aggregate_type)).into()));
    attributes.push(("type", event.event_type.as_deref().unwrap_or(&event.aggregate_type).into()));
    if !event.aggregate_id.is_empty() {
        attributes.push(("subject", event.aggregate_id.as_str().into()));
    }
    attributes.push(("time", rfc3339(event.created_at).into()));
    attributes.push(("outboxseq", event.seq.to_string().into()));
    attributes
}

fn cloudevents_document(event: &Event, content_type: Option<&str>) -> Bytes {
    let mut out = Vec::with_capacity(384 + event.payload.len());
    for (name, value) in attributes(event) {
        push_member(&mut out, name, &value);
    }
    if let Some(content_type) = content_type {
        push_member(&mut out, "datacontenttype", content_type);
    }
    match &event.payload {
        Payload::Json(json) if content_type.is_none_or(is_json) => {
            out.extend_from_slice(b",\"data\":");
            out.extend_from_slice(json);
        }
        Payload::Json(bytes) | Payload::Text(bytes) | Payload::Binary(bytes) => {
            match std::str::from_utf8(bytes) {
                Ok(text) if matches!(event.payload, Payload::Text(_)) => push_member(&mut out, "data", text),
                _ => push_member(&mut out, "data_base64", &STANDARD.encode(bytes)),
            }
        }
        Payload::Tombstone => {}
    }
    out.push(b'}');
    Bytes::from(out)
}

fn push_member(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(if out.is_empty() { b"{\"" } else { b",\"" });
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    // Serialising a &str into memory cannot fail.
    let _ = serde_json::to_writer(out, value);
}

fn is_json(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media_type.ends_with("/json") || media_type.ends_with("+json")
}

/// A source is a URI reference: what may not stand in a path is percent-encoded.
fn as_path(text: &str) -> Cow<'_, str> {
    let may_stand = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&byte);
    if text.bytes().all(may_stand) {
        return text.into();
    }
    let encode =
        |byte: u8| if may_stand(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect::<String>().into()
}

fn rfc3339(time: OffsetDateTime) -> String {
    time.to_offset(UtcOffset::UTC).format(&Rfc3339).unwrap_or_default()
}

/// An object of strings as pairs in their order, borrowed where nothing is escaped.
struct HeadersVisitor;

impl<'de> Visitor<'de> for HeadersVisitor {
    type Value = Headers<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut headers = Vec::new();
        while let Some((Text(name), Text(value))) = map.next_entry()? {
            headers.push((name, value));
        }
        Ok(headers)
    }
}

/// `Cow<str>` as serde reads it always copies.
struct Text<'a>(Cow<'a, str>);

impl<'de> serde::Deserialize<'de> for Text<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(text.into()))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(text.to_owned().into()))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

#[cfg(test)]
#[path = "encode_tests.rs"]
mod tests;
