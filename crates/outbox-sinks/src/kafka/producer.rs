//! Producers, each lent to one publish at a time.
//!
//! A publish has a producer to itself, so that what it purges at its deadline is its own and nobody else's, and so
//! that "nothing in flight" is a fact and not a guess when it returns. Two publishes at once mean two producers.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::message::{DeliveryResult, Header, Message as _, OwnedHeaders};
use rdkafka::metadata::Metadata;
use rdkafka::producer::{BaseRecord, Producer as _, ProducerContext, PurgeConfig, ThreadedProducer};
use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::blame::is_denial;
use crate::Message;
use crate::options::tls_hint;

/// Idle producers that a queue keeps; it has two batches in flight.
const MAX_IDLE: usize = 2;

/// How much longer than the publish librdkafka keeps a message, as a share of it. A relay keeps at least a tenth
/// between `publish_timeout` and `lease`, up to 5 s: half of that is left.
const EXTRA_SHARE: u32 = 20;
const LONGEST_EXTRA: Duration = Duration::from_millis(2500);

/// How long the end of idle producers may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// What became of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Report {
    /// Its index in the batch.
    pub(super) index: usize,
    /// Negative when it never got one.
    pub(super) partition: i32,
    /// Its offset, or why there is none.
    pub(super) outcome: Result<i64, Code>,
}

/// What a producer says.
#[derive(Debug)]
pub(super) enum Event {
    Report(Report),
    /// The brokers do not let us in.
    Denied(String),
    /// The producer takes nothing more.
    Fatal(String),
}

/// Hands on what librdkafka says, from its thread to the publish.
pub(super) struct Listener {
    events: mpsc::UnboundedSender<Event>,
    trouble: Mutex<Option<String>>,
}

impl Listener {
    fn trouble(&self) -> MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: Event) {
        // Nobody listens to a producer that is being dropped.
        let _ = self.events.send(event);
    }
}

impl ClientContext for Listener {
    fn log(&self, _level: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(facility, "{message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let reason = format!("{}{}", reason.replace(['\r', '\n'], " "), tls_hint(reason));
        match error.rdkafka_error_code() {
            Some(Code::Fatal) => self.tell(Event::Fatal(reason.clone())),
            Some(code) if is_denial(code) => self.tell(Event::Denied(reason.clone())),
            _ => {}
        }
        // That all are down says less than why the last one is.
        if !matches!(error.rdkafka_error_code(), Some(Code::AllBrokersDown)) {
            *self.trouble() = Some(reason);
        }
    }
}

impl ProducerContext for Listener {
    /// The message's index in the batch.
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, index: usize) {
        let (message, outcome) = match result {
            Ok(message) => (message, Ok(message.offset())),
            Err((error, message)) => (message, Err(error.rdkafka_error_code().unwrap_or(Code::Unknown))),
        };
        self.tell(Event::Report(Report { index, partition: message.partition(), outcome }));
    }
}

/// A producer with nobody else's messages.
pub(super) struct Producer {
    client: ThreadedProducer<Listener>,
    events: mpsc::UnboundedReceiver<Event>,
    /// How long librdkafka keeps a message: longer than the publish, so that it never gives up one of a key and goes
    /// on with the next.
    reach: Duration,
    outstanding: usize,
    /// Not to be used again.
    spent: bool,
}

impl Producer {
    fn new(config: &ClientConfig, reach: Duration) -> KafkaResult<Self> {
        let (sender, events) = mpsc::unbounded_channel();
        let mut config = config.clone();
        config.set("delivery.timeout.ms", reach.as_millis().to_string());
        let client = config.create_with_context(Listener { events: sender, trouble: Mutex::new(None) })?;
        Ok(Self { client, events, reach, outstanding: 0, spent: false })
    }

    fn is_good_for(&self, left: Duration) -> bool {
        self.reach >= left + left / (2 * EXTRA_SHARE) && self.client.client().fatal_error().is_none()
    }

    /// Messages without a report.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// It ends with this publish.
    pub(super) fn spend(&mut self) {
        self.spent = true;
    }

    /// What went wrong last since the producer was lent.
    pub(super) fn trouble(&self) -> Option<String> {
        self.client.client().context().trouble().clone()
    }

    /// Why it takes nothing more.
    pub(super) fn fatal(&self) -> String {
        match self.client.client().fatal_error() {
            Some((code, reason)) => format!("Fatal error: {code}: {reason}"),
            None => "Fatal error".to_owned(),
        }
    }

    /// Puts a message into librdkafka's queue.
    pub(super) fn send(&mut self, index: usize, topic: &str, message: &Message<'_>) -> Result<(), Code> {
        let mut record = BaseRecord::<[u8], [u8], usize>::with_opaque_to(topic, index)
            .key(message.event.aggregate_id.as_bytes())
            .headers(headers(message));
        if let Some(body) = &message.body {
            record = record.payload(body);
        }
        match self.client.send(record) {
            Ok(()) => {
                self.outstanding += 1;
                Ok(())
            }
            Err((error, _)) => Err(error.rdkafka_error_code().unwrap_or(Code::InvalidArgument)),
        }
    }

    /// The next thing that the producer says. Cancel-safe.
    pub(super) async fn event(&mut self) -> Event {
        let event = self.events.recv().await;
        self.note(event).unwrap_or_else(|| Event::Fatal("the producer is gone".to_owned()))
    }

    /// The same for what it has said already.
    pub(super) fn try_event(&mut self) -> Option<Event> {
        let event = self.events.try_recv().ok();
        self.note(event)
    }

    fn note(&mut self, event: Option<Event>) -> Option<Event> {
        if matches!(event, Some(Event::Report(_))) {
            self.outstanding -= 1;
        }
        event
    }

    /// Takes back what waits and gives up what was sent: each of them gets its report.
    pub(super) fn purge(&mut self) {
        self.spent = true;
        self.client.purge(PurgeConfig::default().queue().inflight().non_blocking());
    }

    /// Asks the brokers about a topic, or about all of them. The answer comes within `at_most`.
    pub(super) fn metadata(
        &self,
        topic: Option<&str>,
        at_most: Duration,
    ) -> oneshot::Receiver<KafkaResult<Metadata>> {
        let (answer, answered) = oneshot::channel();
        let (client, topic) = (self.client.clone(), topic.map(str::to_owned));
        // A thread of its own: a runtime waits for its blocking tasks when it ends, however long they take.
        let ask = move || {
            let metadata = client.client().fetch_metadata(topic.as_deref(), at_most);
            // The publish may be over.
            let _ = answer.send(metadata);
        };
        // Without a thread the sender is dropped, which the receiver sees.
        let _ = thread::Builder::new().name("kafka-metadata".to_owned()).spawn(ask);
        answered
    }

    /// Ends the producer on a thread of its own: it joins others.
    fn end(self) {
        let _ = thread::Builder::new().name("kafka-end".to_owned()).spawn(move || drop(self));
    }
}

/// The headers as they are, except that CloudEvents attributes are called `ce_…` on Kafka.
fn headers(message: &Message<'_>) -> OwnedHeaders {
    let is_cloudevent = message.headers.first().is_some_and(|(name, _)| name == "ce-specversion");
    let empty = OwnedHeaders::new_with_capacity(message.headers.len());
    message.headers.iter().fold(empty, |headers, (name, value)| {
        let value = Some(value.as_bytes());
        match name.strip_prefix("ce-") {
            Some(attribute) if is_cloudevent => {
                headers.insert(Header { key: &format!("ce_{attribute}"), value })
            }
            _ => headers.insert(Header { key: name, value }),
        }
    })
}

/// Producers that nobody uses, for each queue its own: they differ in how long they keep a message.
pub(super) struct Pool {
    config: ClientConfig,
    /// `None` once closed.
    idle: Mutex<Option<HashMap<String, Vec<Producer>>>>,
}

impl Pool {
    pub(super) fn new(config: ClientConfig) -> Self {
        Self { config, idle: Mutex::new(Some(HashMap::new())) }
    }

    pub(super) fn config(&self) -> &ClientConfig {
        &self.config
    }

    fn idle(&self) -> MutexGuard<'_, Option<HashMap<String, Vec<Producer>>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A producer for a publish that has this long.
    pub(super) fn lend<'p>(&'p self, queue: &'p str, left: Duration) -> Result<Lent<'p>, String> {
        let idle = self.idle().as_mut().and_then(|idle| idle.get_mut(queue)?.pop());
        let producer = match idle {
            Some(mut producer) if producer.is_good_for(left) => {
                // What it said since it was last used is old news.
                while producer.try_event().is_some() {}
                *producer.client.client().context().trouble() = None;
                producer
            }
            other => {
                if let Some(short) = other {
                    short.end();
                }
                let reach = left + (left / EXTRA_SHARE).clamp(Duration::from_millis(1), LONGEST_EXTRA);
                Producer::new(&self.config, reach)
                    .map_err(|error| format!("no Kafka producer can be made: {error}"))?
            }
        };
        Ok(Lent { pool: self, queue, producer: Some(producer) })
    }

    fn take_back(&self, queue: &str, producer: Producer) {
        let surplus = match &mut *self.idle() {
            Some(idle) => {
                let idle = idle.entry(queue.to_owned()).or_default();
                if idle.len() < MAX_IDLE {
                    idle.push(producer);
                    return;
                }
                producer
            }
            None => producer,
        };
        surplus.end();
    }

    /// Ends all that nobody uses, and those in use as they come back.
    pub(super) async fn close(&self) {
        let idle = self.idle().take();
        let producers: Vec<Producer> = idle.into_iter().flatten().flat_map(|(_, idle)| idle).collect();
        let (ended, end) = oneshot::channel::<()>();
        let end_all = move || {
            for producer in producers {
                // Nothing is in flight in an idle producer: this returns at once.
                let _ = producer.client.flush(CLOSE_TIMEOUT);
            }
            drop(ended);
        };
        if thread::Builder::new().name("kafka-close".to_owned()).spawn(end_all).is_ok() {
            // Either way nothing can be done about it.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, end).await;
        }
    }
}

/// A producer in use by one publish. Dropped with messages in flight it takes them back and ends the producer.
pub(super) struct Lent<'p> {
    pool: &'p Pool,
    queue: &'p str,
    producer: Option<Producer>,
}

impl Lent<'_> {
    /// When the publish must end: at its deadline, and before librdkafka gives up the first message.
    pub(super) fn end(&self, deadline: Instant) -> Instant {
        deadline.min(Instant::now() + self.reach)
    }
}

impl Deref for Lent<'_> {
    type Target = Producer;

    fn deref(&self) -> &Producer {
        self.producer.as_ref().expect("held until dropped")
    }
}

impl DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut Producer {
        self.producer.as_mut().expect("held until dropped")
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let Some(mut producer) = self.producer.take() else { return };
        if producer.outstanding > 0 && !producer.spent {
            // The publish was dropped. Waits for librdkafka's threads: what they hold must not be sent any more.
            producer.client.purge(PurgeConfig::default().queue().inflight());
            producer.spend();
        }
        if producer.spent {
            producer.end();
        } else {
            self.pool.take_back(self.queue, producer);
        }
    }
}
