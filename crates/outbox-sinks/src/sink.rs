use std::borrow::Cow;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use outbox_store::Event;
use tokio::time::Instant;

/// One event, routed and encoded.
#[derive(Clone, Debug)]
pub struct Message<'a> {
    /// The row it was made of.
    pub event: &'a Event,
    /// The queue it was claimed from.
    pub queue: &'a str,
    /// Topic, routing key, stream or subject; `None` when neither the row nor the queue names one.
    pub destination: Option<Cow<'a, str>>,
    /// Metadata and the application's own headers, in the order they are to be written.
    pub headers: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// The body; `None` for a tombstone.
    pub body: Option<Bytes>,
}

/// Whose fault it is that a message was not accepted. Decides what the attempt costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The message itself can never be delivered: FAILED at once.
    Message,
    /// Cannot be told: retried with backoff, and charged.
    Unclear,
    /// Where it should go does not exist or is closed to us: its key is held, nothing charged.
    Destination,
    /// The sink is down: released, nothing charged, and the breaker opens.
    Sink,
}

impl Cause {
    /// The value of the `cause` label in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Unclear => "unclear",
            Self::Destination => "destination",
            Self::Sink => "sink",
        }
    }
}

/// Why a message was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Whose fault it is.
    pub cause: Cause,
    /// One line for `last_error` and the log; no payload, no secret.
    pub error: String,
    /// The sink asked to be left alone for this long.
    pub retry_after: Option<Duration>,
    /// No answer came before the deadline: the message may have been delivered all the same.
    pub silent: bool,
}

impl Refusal {
    /// No answer before the deadline.
    pub(crate) fn silence(cause: Cause) -> Self {
        let error = "no answer before the deadline".to_owned();
        Self { cause, error, retry_after: None, silent: true }
    }
}

/// What became of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Durably accepted, with where it went.
    Acked {
        /// Where it went, in the sink's own terms: `topic/partition@offset`, a stream id …
        receipt: Option<String>,
    },
    /// Not accepted, or not known to be.
    Refused(Refusal),
    /// Never sent: an earlier message of its key was not accepted, or the deadline came first.
    Unsent,
}

impl Answer {
    /// A refusal without a wish for when to come back.
    #[must_use]
    pub fn refused(cause: Cause, error: impl Into<String>) -> Self {
        Self::Refused(Refusal { cause, error: error.into(), retry_after: None, silent: false })
    }

    /// No answer before the deadline. The cause is for [`crate::batch::silence_cause`] to say.
    #[must_use]
    pub fn silence(cause: Cause) -> Self {
        Self::Refused(Refusal::silence(cause))
    }

    /// Whether it was durably accepted.
    #[must_use]
    pub fn is_acked(&self) -> bool {
        matches!(self, Self::Acked { .. })
    }
}

/// A broker, an endpoint, a file.
///
/// A sink classifies its own failures; what follows from them is decided elsewhere, in one place for all sinks.
#[async_trait]
pub trait Sink: Send + Sync {
    /// The sink's type as in `type = "…"`.
    fn kind(&self) -> &'static str;

    /// Whether a message must name a destination. Where false the queue's template is optional.
    fn needs_destination(&self) -> bool;

    /// Delivers a batch and answers for each message, in the batch's order: exactly `batch.len()` answers.
    ///
    /// * No send starts at or after `deadline`, and none is left queued when the call returns or its future is dropped.
    /// * Messages of one key (aggregate_type, aggregate_id) are sent in the batch's order. A sink that cannot keep
    ///   that order under pipelining has at most one message of a key in flight; after a message that was not
    ///   acknowledged the rest of its key is [`Answer::Unsent`] wherever that is possible.
    /// * Silence until the deadline is [`Cause::Unclear`] when a later send to the same place was acknowledged, else
    ///   [`Cause::Sink`].
    async fn publish(&self, batch: &[Message<'_>], deadline: Instant) -> Vec<Answer>;

    /// Is the sink there? One line saying what was found, or what is wrong. Used by `/readyz`, `outbox check`.
    async fn check(&self, deadline: Instant) -> Result<String, String>;

    /// Lets go of connections and files; nothing is in flight any more.
    async fn close(&self);
}
