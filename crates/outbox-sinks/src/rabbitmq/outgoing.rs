//! A message as AMQP 0.9.1 has it.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};

use super::address::{Address, LONGEST_NAME};
use crate::Message;

/// Tells a tombstone from an empty payload. Applications cannot set it: names that begin so are the relay's own.
const TOMBSTONE: &str = "outbox-tombstone";

/// What CloudEvents attributes are called in the AMQP binding.
const CLOUDEVENTS_PREFIX: &str = "cloudEvents_";

/// A frame's own bytes around its payload.
const FRAME_OVERHEAD: usize = 8;

/// Everything in a content header but content type, type and headers: class, size, flags, message id, and so on.
const FIXED_PROPERTIES: usize = 96;

/// Survives a restart of the broker, in a queue that does.
const PERSISTENT: u8 = 2;

/// One message, ready to be published.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) address: Address,
    /// The event's id: what a returned message is known by.
    pub(super) message_id: ShortString,
    pub(super) properties: BasicProperties,
    pub(super) body: Bytes,
}

impl Outgoing {
    /// Makes it. `frame_max` is what the connection allows.
    ///
    /// # Errors
    /// One line for what AMQP cannot carry: sent all the same it would cost the whole connection.
    pub(super) fn new(message: &Message<'_>, exchange: &str, frame_max: usize) -> Result<Self, String> {
        let destination = message.destination.as_deref().unwrap_or_default();
        let address = Address::parse(destination, exchange)?;
        let message_id = ShortString::from(message.event.id.to_string());
        let seconds = u64::try_from(message.event.created_at.unix_timestamp()).unwrap_or_default();
        let mut properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_message_id(message_id.clone())
            .with_timestamp(seconds);
        let mut size = FRAME_OVERHEAD + FIXED_PROPERTIES;
        if let Some(kind) =
            message.event.event_type.as_deref().and_then(|kind| ShortString::try_new(kind).ok())
        {
            size += kind.as_str().len();
            properties = properties.with_type(kind);
        }
        let mut headers = FieldTable::default();
        let is_cloudevent = message.headers.iter().all(|(name, _)| name != "outbox-id");
        for (name, value) in &message.headers {
            size += CLOUDEVENTS_PREFIX.len() + name.len() + value.len() + 6;
            if name == "content-type" {
                properties = properties.with_content_type(short("content type", value)?);
                continue;
            }
            let name = match name.strip_prefix("ce-") {
                Some(attribute) if is_cloudevent => format!("{CLOUDEVENTS_PREFIX}{attribute}"),
                _ => name.to_string(),
            };
            headers.insert(short("header name", &name)?, text(value));
        }
        if message.body.is_none() {
            headers.insert(TOMBSTONE.into(), text("true"));
        }
        if size > frame_max {
            return Err(format!(
                "the headers take about {size} bytes, and RabbitMQ's frame_max allows {frame_max}; put less into them"
            ));
        }
        let body = message.body.clone().unwrap_or_default();
        Ok(Self { address, message_id, properties: properties.with_headers(headers), body })
    }
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

fn short(what: &str, value: &str) -> Result<ShortString, String> {
    ShortString::try_new(value).map_err(|_| {
        format!("a {what} has {} bytes, and AMQP allows {LONGEST_NAME}; shorten it", value.len())
    })
}
