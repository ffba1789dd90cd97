//! What goes over the socket.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Answer, Cause, Message, Refusal};

/// One message as a relay sent it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// Tells the answers of a connection apart.
    pub number: u64,
    /// The relay that sent it.
    pub relay: String,
    /// The queue it was claimed from.
    pub queue: String,
    /// The event's id.
    pub id: Uuid,
    /// The event's seq.
    pub seq: i64,
    /// First half of the ordering key.
    pub aggregate_type: String,
    /// Second half of the ordering key.
    pub aggregate_id: String,
    /// The event's type.
    pub event_type: Option<String>,
    /// Failures charged to the event before this attempt.
    pub retry_count: u32,
    /// Claims lost with the event in hand before this attempt.
    pub lost_count: u32,
    /// Where it should go.
    pub destination: Option<String>,
    /// The message's headers.
    pub headers: Vec<(String, String)>,
    /// The body in base64; `None` for a tombstone.
    pub body_base64: Option<String>,
}

impl Delivery {
    /// The event's ordering key.
    #[must_use]
    pub fn key(&self) -> (&str, &str) {
        (&self.aggregate_type, &self.aggregate_id)
    }

    /// The body; `None` for a tombstone.
    ///
    /// # Panics
    /// When the sender did not write base64.
    #[must_use]
    pub fn body(&self) -> Option<Vec<u8>> {
        self.body_base64.as_ref().map(|text| STANDARD.decode(text).expect("the sink writes base64"))
    }
}

/// What a script does with a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Delivered and acknowledged.
    Ack,
    /// Delivered; acknowledged after this time.
    AckAfter(Duration),
    /// Delivered; answered when the test says so with [`super::Controller::answer_held`].
    Hold,
    /// Delivered, but the answer is lost.
    Lose,
    /// Not delivered, and no answer either.
    Ignore,
    /// Not delivered: a nack, for which nobody can be blamed.
    Nack(String),
    /// Not delivered: the sink is down.
    Refuse(String),
    /// Not delivered: the message can never be.
    Reject(String),
    /// Not delivered: the destination does not exist.
    Miss(String),
    /// Delivered; then the connection is cut without an answer.
    Cut,
}

impl Reply {
    /// Whether the message counts as delivered.
    #[must_use]
    pub fn delivers(&self) -> bool {
        matches!(self, Self::Ack | Self::AckAfter(_) | Self::Hold | Self::Lose | Self::Cut)
    }

    /// The sink's answer; `None` when there is none.
    pub(super) fn answer(&self) -> Option<Answer> {
        let refused = |cause, error: &String| {
            Some(Answer::Refused(Refusal { cause, error: error.clone(), retry_after: None, silent: false }))
        };
        match self {
            Self::Ack | Self::AckAfter(_) => Some(Answer::Acked { receipt: Some("scripted".to_owned()) }),
            Self::Nack(error) => refused(Cause::Unclear, error),
            Self::Refuse(error) => refused(Cause::Sink, error),
            Self::Reject(error) => refused(Cause::Message, error),
            Self::Miss(error) => refused(Cause::Destination, error),
            Self::Hold | Self::Lose | Self::Ignore | Self::Cut => None,
        }
    }
}

/// An answer to a [`Delivery`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WireAnswer {
    pub(super) number: u64,
    pub(super) reply: Reply,
}

pub(super) fn delivery(relay: &str, message: &Message<'_>) -> Delivery {
    let event = message.event;
    Delivery {
        number: 0,
        relay: relay.to_owned(),
        queue: message.queue.to_owned(),
        id: event.id,
        seq: event.seq,
        aggregate_type: event.aggregate_type.clone(),
        aggregate_id: event.aggregate_id.clone(),
        event_type: event.event_type.clone(),
        retry_count: event.retry_count,
        lost_count: event.lost_count,
        destination: message.destination.as_deref().map(str::to_owned),
        headers: message.headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
        body_base64: message.body.as_ref().map(|body| STANDARD.encode(body)),
    }
}
