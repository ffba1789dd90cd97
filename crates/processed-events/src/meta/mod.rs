//! What the relay's sinks say about an event.

mod headers;
mod json;

use time::OffsetDateTime;
use uuid::Uuid;

use headers::{Binding, Headers};

/// Why a message's metadata could not be read. It never shows what a message holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetaError {
    /// There is neither an `outbox-id` nor the attribute `id` of a CloudEvent in binary mode.
    #[error(
        "no `outbox-id` and no CloudEvents attribute `id`: not a message of the relay, or a CloudEvent in structured mode, whose body from_cloudevent reads"
    )]
    NotAnEvent,
    /// Something that the relay always writes is not there.
    #[error("`{0}` is missing: the relay always writes it")]
    Missing(&'static str),
    /// Something is not in the form in which the relay writes it.
    #[error("`{name}` is not {expected}")]
    Invalid {
        /// What it is called in the message.
        name: &'static str,
        /// The form in which the relay writes it.
        expected: &'static str,
    },
    /// The document is no JSON object of the expected form.
    #[error("not the expected JSON document (line {line}, column {column})")]
    NotJson {
        /// Where, from 1.
        line: usize,
        /// Where, from 1.
        column: usize,
    },
}

/// What the relay says about an event, whatever the sink and the envelope.
///
/// The constructors named after brokers take names and values of a message's headers and read both the raw envelope and
/// CloudEvents in binary mode. Names are compared without regard to case; headers they do not know are passed over.
///
/// ```
/// use processed_events::EventMeta;
///
/// let meta = EventMeta::from_kafka([
///     ("outbox-id", "01980000-0000-7000-8000-000000000001"),
///     ("outbox-seq", "42"),
///     ("outbox-queue", "default"),
///     ("outbox-aggregate-type", "Order"),
///     ("outbox-aggregate-id", "101"),
///     ("outbox-created-at", "2026-01-02T03:04:05.678Z"),
///     ("content-type", "application/json"),
/// ])?;
/// assert_eq!((meta.seq, meta.aggregate_id.as_str()), (42, "101"));
/// # Ok::<(), processed_events::MetaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EventMeta {
    /// The event's identity: what to give to `once`.
    pub id: Uuid,
    /// Its place in the order of its outbox: what to give to [`SeqGuard`](crate::SeqGuard).
    pub seq: i64,
    /// The queue of the outbox; CloudEvents do not say it.
    pub queue: Option<String>,
    /// What kind of thing the event is about.
    pub aggregate_type: String,
    /// Which of them. With the type, it is the ordering key.
    pub aggregate_id: String,
    /// What happened, if its row says so. A CloudEvent must have a type: there the aggregate's stands in for none.
    pub event_type: Option<String>,
    /// When its row was written, by the database's clock.
    pub created_at: OffsetDateTime,
    /// Media type of the payload. The lines of the file and stdout sinks have it only where the application set the
    /// header `content-type`.
    pub content_type: Option<String>,
    /// Trace context of the transaction that wrote it, if the application passed it on.
    pub traceparent: Option<String>,
}

impl EventMeta {
    /// From the headers of a Kafka record; a header without a value counts as an empty one.
    ///
    /// # Errors
    /// [`MetaError`], when it is no message of the relay.
    pub fn from_kafka<N: AsRef<str>, V: AsRef<[u8]>>(
        headers: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, MetaError> {
        Headers::collect(Binding::Kafka, headers).meta()
    }

    /// From the `content_type` property of an AMQP 0.9.1 message and those of its headers that are strings.
    ///
    /// # Errors
    /// [`MetaError`], when it is no message of the relay.
    pub fn from_amqp<N: AsRef<str>, V: AsRef<[u8]>>(
        content_type: Option<&str>,
        headers: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, MetaError> {
        let mut meta = Headers::collect(Binding::Amqp, headers).meta()?;
        meta.content_type = content_type.map(str::to_owned);
        Ok(meta)
    }

    /// From the fields of an entry of a Redis stream; `payload` may be among them.
    ///
    /// # Errors
    /// [`MetaError`], when it is no message of the relay.
    pub fn from_redis<N: AsRef<str>, V: AsRef<[u8]>>(
        fields: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, MetaError> {
        Headers::collect(Binding::Redis, fields).meta()
    }

    /// From the headers of a NATS message.
    ///
    /// # Errors
    /// [`MetaError`], when it is no message of the relay.
    pub fn from_nats<N: AsRef<str>, V: AsRef<[u8]>>(
        headers: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, MetaError> {
        Headers::collect(Binding::Nats, headers).meta()
    }

    /// From the headers of an HTTP request.
    ///
    /// # Errors
    /// [`MetaError`], when it is no message of the relay.
    pub fn from_http<N: AsRef<str>, V: AsRef<[u8]>>(
        headers: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, MetaError> {
        Headers::collect(Binding::Http, headers).meta()
    }

    /// From the body of a CloudEvent in structured mode (`application/cloudevents+json`), by any broker. Its
    /// [`traceparent`](Self::traceparent) is not in the document: [`with_headers`](Self::with_headers) adds it.
    ///
    /// # Errors
    /// [`MetaError`], when it is no document of the relay.
    pub fn from_cloudevent(body: &[u8]) -> Result<Self, MetaError> {
        json::from_cloudevent(body)
    }

    /// From a line of the file or stdout sink.
    ///
    /// # Errors
    /// [`MetaError`], when it is no line of the relay.
    pub fn from_line(line: &[u8]) -> Result<Self, MetaError> {
        json::from_line(line)
    }

    /// The same with the `traceparent` of these headers, if they have one.
    #[must_use]
    pub fn with_headers<N: AsRef<str>, V: AsRef<[u8]>>(
        mut self,
        headers: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let traceparent = Headers::collect(Binding::Kafka, headers).traceparent;
        self.traceparent = traceparent.or(self.traceparent);
        self
    }
}

#[cfg(test)]
mod tests;
