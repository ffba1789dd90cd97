//! What the service tells and the consumer hears.

use anyhow::{Context, Result};
use processed_events::EventMeta;
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
    pub(crate) meta: EventMeta,
    pub(crate) payload: Vec<u8>,
}

impl Event {
    /// The order that it tells of; `None` for events of other types.
    pub(crate) fn order_placed(&self) -> Result<Option<OrderPlaced>> {
        if self.meta.event_type.as_deref() != Some(ORDER_PLACED) {
            return Ok(None);
        }
        let parsed = serde_json::from_slice(&self.payload);
        parsed
            .map(Some)
            .with_context(|| format!("event {} is no {ORDER_PLACED} as this consumer knows it", self.meta.id))
    }
}
