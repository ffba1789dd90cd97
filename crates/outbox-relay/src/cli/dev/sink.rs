//! Shows each event in one line.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox_sinks::{Answer, Cause, Message, Sink};
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Most characters of a payload that are shown.
const PAYLOAD_CHARS: usize = 120;

/// When the demonstration's own events were committed. Those of a second terminal are not in it.
#[derive(Clone, Default)]
pub(super) struct Committed(Arc<Mutex<HashMap<Uuid, Instant>>>);

impl Committed {
    pub(super) fn insert(&self, id: Uuid, at: Instant) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id, at);
    }

    fn take(&self, id: Uuid) -> Option<Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&id)
    }
}

pub(super) struct DevSink {
    committed: Committed,
    /// Deliveries after which it is enough.
    count: Option<u64>,
    delivered: Mutex<u64>,
    enough: CancellationToken,
}

impl DevSink {
    pub(super) fn new(committed: Committed, count: Option<u64>, enough: CancellationToken) -> Self {
        Self { committed, count, delivered: Mutex::new(0), enough }
    }

    /// On this machine the database's clock is ours, so that `created_at` will do for events of a second terminal.
    fn latency(&self, message: &Message<'_>) -> Duration {
        match self.committed.take(message.event.id) {
            Some(at) => at.elapsed(),
            None => (OffsetDateTime::now_utc() - message.event.created_at).try_into().unwrap_or_default(),
        }
    }

    fn show(&self, message: &Message<'_>) -> io::Result<()> {
        let event = message.event;
        let milliseconds = self.latency(message).as_secs_f64() * 1e3;
        let mut out = io::stdout().lock();
        writeln!(
            out,
            "delivered {event_type} {key_type}/{key_id} {payload}  {milliseconds:.1} ms after commit  seq {seq} id {id}",
            event_type = event.event_type.as_deref().unwrap_or("(no type)"),
            key_type = event.aggregate_type,
            key_id = event.aggregate_id,
            payload = payload(message),
            seq = event.seq,
            id = event.id,
        )?;
        out.flush()
    }

    fn deliver(&self, message: &Message<'_>) -> Answer {
        let mut delivered = self.delivered.lock().unwrap_or_else(PoisonError::into_inner);
        if self.count.is_some_and(|count| *delivered >= count) {
            return Answer::Unsent;
        }
        if let Err(error) = self.show(message) {
            // Nobody reads: there is nothing to demonstrate any more.
            self.enough.cancel();
            return Answer::refused(Cause::Sink, format!("cannot write to standard output: {error}"));
        }
        *delivered += 1;
        if self.count == Some(*delivered) {
            self.enough.cancel();
        }
        Answer::Acked { receipt: None }
    }
}

/// The payload in one line.
fn payload(message: &Message<'_>) -> String {
    let Some(body) = &message.body else {
        return "(tombstone)".to_owned();
    };
    let text = String::from_utf8_lossy(body);
    let mut shown: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(PAYLOAD_CHARS).collect();
    if text.chars().nth(PAYLOAD_CHARS).is_some() {
        shown.push('…');
    }
    shown
}

#[async_trait]
impl Sink for DevSink {
    fn kind(&self) -> &'static str {
        "dev"
    }

    fn needs_destination(&self) -> bool {
        false
    }

    async fn publish(&self, batch: &[Message<'_>], _deadline: tokio::time::Instant) -> Vec<Answer> {
        batch.iter().map(|message| self.deliver(message)).collect()
    }

    async fn check(&self, _deadline: tokio::time::Instant) -> Result<String, String> {
        Ok("writes to standard output".to_owned())
    }

    async fn close(&self) {}
}
