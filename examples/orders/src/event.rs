//! What the service tells and the consumer hears.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The type of the event whose payload is [`OrderPlaced`].
pub(crate) const ORDER_PLACED: &str = "OrderPlaced";

/// The payload. The account is the event's aggregate.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct OrderPlaced {
    pub(crate) order_id: Uuid,
    pub(crate) amount_cents: i64,
}

/// An event as it arrives, from whichever broker.
#[derive(Debug)]
pub(crate) struct Event {
    /// The same each time that this event is delivered: what to deduplicate on.
    pub(crate) id: String,
    pub(crate) event_type: String,
    pub(crate) aggregate_id: String,
    pub(crate) payload: Vec<u8>,
}

impl Event {
    /// From a message's headers and body.
    pub(crate) fn from_headers<'h>(
        headers: impl IntoIterator<Item = (&'h str, &'h [u8])>,
        payload: Vec<u8>,
    ) -> Result<Self> {
        let (mut id, mut event_type, mut aggregate_id) = (None, String::new(), String::new());
        for (name, value) in headers {
            let value = || String::from_utf8_lossy(value).into_owned();
            match name {
                "outbox-id" => id = Some(value()),
                "outbox-event-type" => event_type = value(),
                "outbox-aggregate-id" => aggregate_id = value(),
                _ => {}
            }
        }
        let id = id.context("a message without the header outbox-id is none of the relay's")?;
        Ok(Self { id, event_type, aggregate_id, payload })
    }

    /// The order that it tells of; `None` for events of other types.
    pub(crate) fn order_placed(&self) -> Result<Option<OrderPlaced>> {
        if self.event_type != ORDER_PLACED {
            return Ok(None);
        }
        let parsed = serde_json::from_slice(&self.payload);
        parsed
            .map(Some)
            .with_context(|| format!("event {} is no {ORDER_PLACED} as this consumer knows it", self.id))
    }
}
