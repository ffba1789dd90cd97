//! Metadata in headers.

use std::borrow::Cow;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use super::{EventMeta, MetaError};

/// Whose headers: what CloudEvents attributes are called, and how their values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binding {
    Kafka,
    Amqp,
    Redis,
    Nats,
    Http,
}

impl Binding {
    /// The attribute's name, if the header is one.
    fn attribute(self, header: &str) -> Option<&str> {
        let prefixes: &[&str] = match self {
            Self::Kafka => &["ce_"],
            // The AMQP binding has both; the relay writes the first.
            Self::Amqp => &["cloudEvents_", "cloudEvents:"],
            Self::Redis | Self::Nats | Self::Http => &["ce-"],
        };
        prefixes.iter().find_map(|prefix| {
            let (start, name) = header.split_at_checked(prefix.len())?;
            start.eq_ignore_ascii_case(prefix).then_some(name)
        })
    }

    fn is_percent_encoded(self) -> bool {
        matches!(self, Self::Nats | Self::Http)
    }
}

/// Those headers of a message that say something about the event, as they came.
#[derive(Debug)]
pub(super) struct Headers {
    outbox: Outbox,
    attributes: Attributes,
    content_type: Option<String>,
    pub(super) traceparent: Option<String>,
}

/// The raw envelope.
#[derive(Debug, Default)]
struct Outbox {
    id: Option<String>,
    seq: Option<String>,
    queue: Option<String>,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    event_type: Option<String>,
    created_at: Option<String>,
}

/// A CloudEvent's.
#[derive(Debug, Default)]
pub(super) struct Attributes {
    pub(super) id: Option<String>,
    pub(super) source: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) subject: Option<String>,
    pub(super) time: Option<String>,
    pub(super) outboxseq: Option<String>,
}

impl Headers {
    pub(super) fn collect<N: AsRef<str>, V: AsRef<[u8]>>(
        binding: Binding,
        headers: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let mut all = Self {
            outbox: Outbox::default(),
            attributes: Attributes::default(),
            content_type: None,
            traceparent: None,
        };
        for (name, value) in headers {
            all.take(binding, name.as_ref(), value.as_ref());
        }
        all
    }

    fn take(&mut self, binding: Binding, name: &str, value: &[u8]) {
        let is_attribute = binding.attribute(name).is_some();
        let Some(place) = self.place(binding, name) else { return };
        // Of two with one name the first is the relay's.
        if place.is_some() {
            return;
        }
        let text = String::from_utf8_lossy(value);
        let encoded = is_attribute && binding.is_percent_encoded();
        *place = Some(if encoded { percent_decoded(&text).into_owned() } else { text.into_owned() });
    }

    /// Where the header's value belongs.
    fn place(&mut self, binding: Binding, name: &str) -> Option<&mut Option<String>> {
        if let Some(attribute) = binding.attribute(name) {
            let attributes = &mut self.attributes;
            return match attribute.to_ascii_lowercase().as_str() {
                "id" => Some(&mut attributes.id),
                "source" => Some(&mut attributes.source),
                "type" => Some(&mut attributes.kind),
                "subject" => Some(&mut attributes.subject),
                "time" => Some(&mut attributes.time),
                "outboxseq" => Some(&mut attributes.outboxseq),
                _ => None,
            };
        }
        match name.to_ascii_lowercase().as_str() {
            "outbox-id" => Some(&mut self.outbox.id),
            "outbox-seq" => Some(&mut self.outbox.seq),
            "outbox-queue" => Some(&mut self.outbox.queue),
            "outbox-aggregate-type" => Some(&mut self.outbox.aggregate_type),
            "outbox-aggregate-id" => Some(&mut self.outbox.aggregate_id),
            "outbox-event-type" => Some(&mut self.outbox.event_type),
            "outbox-created-at" => Some(&mut self.outbox.created_at),
            "content-type" => Some(&mut self.content_type),
            "traceparent" => Some(&mut self.traceparent),
            _ => None,
        }
    }

    /// A raw event may carry attributes of the application's own: what is the relay's decides.
    pub(super) fn meta(self) -> Result<EventMeta, MetaError> {
        let meta = match (self.outbox.id.is_some(), self.attributes.id.is_some()) {
            (true, _) => self.outbox.meta()?,
            (false, true) => self.attributes.meta()?,
            (false, false) => return Err(MetaError::NotAnEvent),
        };
        Ok(EventMeta { content_type: self.content_type, traceparent: self.traceparent, ..meta })
    }
}

impl Outbox {
    fn meta(self) -> Result<EventMeta, MetaError> {
        Ok(EventMeta {
            id: id("outbox-id", self.id)?,
            seq: seq("outbox-seq", self.seq)?,
            queue: Some(there("outbox-queue", self.queue)?),
            aggregate_type: there("outbox-aggregate-type", self.aggregate_type)?,
            aggregate_id: there("outbox-aggregate-id", self.aggregate_id)?,
            event_type: self.event_type,
            created_at: created_at("outbox-created-at", self.created_at)?,
            content_type: None,
            traceparent: None,
        })
    }
}

impl Attributes {
    pub(super) fn meta(self) -> Result<EventMeta, MetaError> {
        let source = there("source", self.source)?;
        let path = source
            .strip_prefix('/')
            .ok_or(MetaError::Invalid { name: "source", expected: "`/` and an aggregate type" })?;
        Ok(EventMeta {
            id: id("id", self.id)?,
            seq: seq("outboxseq", self.outboxseq)?,
            queue: None,
            aggregate_type: percent_decoded(path).into_owned(),
            // An empty subject is not allowed, so there is none.
            aggregate_id: self.subject.unwrap_or_default(),
            event_type: Some(there("type", self.kind)?),
            created_at: created_at("time", self.time)?,
            content_type: None,
            traceparent: None,
        })
    }
}

fn there(name: &'static str, value: Option<String>) -> Result<String, MetaError> {
    value.ok_or(MetaError::Missing(name))
}

fn id(name: &'static str, value: Option<String>) -> Result<Uuid, MetaError> {
    let value = there(name, value)?;
    Uuid::parse_str(&value).map_err(|_| MetaError::Invalid { name, expected: "a UUID" })
}

fn seq(name: &'static str, value: Option<String>) -> Result<i64, MetaError> {
    let value = there(name, value)?;
    value.parse().map_err(|_| MetaError::Invalid { name, expected: "a whole number" })
}

pub(super) fn created_at(name: &'static str, value: Option<String>) -> Result<OffsetDateTime, MetaError> {
    let value = there(name, value)?;
    OffsetDateTime::parse(&value, &Rfc3339)
        .map_err(|_| MetaError::Invalid { name, expected: "a time as RFC 3339 has it" })
}

/// Without its percent-encoding; what is none stays as it is.
fn percent_decoded(text: &str) -> Cow<'_, str> {
    if !text.contains('%') {
        return text.into();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = tail.first_chunk().filter(|_| *first == b'%').and_then(byte);
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned().into()
}

fn byte(digits: &[u8; 2]) -> Option<u8> {
    let value = |digit: u8| char::from(digit).to_digit(16);
    u8::try_from(value(digits[0])? * 16 + value(digits[1])?).ok()
}
