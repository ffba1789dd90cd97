//! `type = "kafka"`: an idempotent producer, every delivery report awaited.
//!
//! librdkafka keeps the order of what it holds, but lets a message go on after the one before it was given up. So it is
//! never left to give up on its own: at the deadline, and after a fatal error, everything is purged, every report
//! awaited, and the producer replaced.

mod blame;
mod cluster;
mod options;
mod producer;
mod properties;
mod run;

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rdkafka::ClientConfig;
use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::time::{Instant, timeout_at};

pub use self::options::{Compression, Config, Partitioner, SaslMechanism};
use self::producer::{Event, Lent, Pool};
pub use self::properties::Properties;
use self::run::{Ending, Run, fatal_answer};
use crate::{Answer, Cause, Message, Sink};

/// How long the reports of purged messages may take.
const PURGE_TIMEOUT: Duration = Duration::from_millis(250);

/// How topics that do not exist are made; -1 leaves a number to the brokers.
#[derive(Clone, Copy, Debug)]
struct Creation {
    partitions: i32,
    replication_factor: i32,
}

/// Delivers to Kafka.
struct Kafka {
    pool: Pool,
    batch_size: usize,
    max_message_bytes: u32,
    creation: Option<Creation>,
    /// Topics that were there when they were last used.
    topics: Mutex<HashSet<String>>,
    /// What the first check found in the brokers' and topics' settings.
    findings: Mutex<Option<String>>,
}

impl Kafka {
    fn new(
        config: ClientConfig,
        batch_size: usize,
        max_message_bytes: u32,
        creation: Option<Creation>,
    ) -> Self {
        Self {
            pool: Pool::new(config),
            batch_size,
            max_message_bytes,
            creation,
            topics: Mutex::new(HashSet::new()),
            findings: Mutex::new(None),
        }
    }

    fn topics(&self) -> MutexGuard<'_, HashSet<String>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up each topic that has not proved itself, so that one that does not exist is known before anything waits
    /// for it.
    async fn look_up(&self, run: &mut Run<'_>, producer: &mut Lent<'_>, end: Instant) {
        for topic in run.topics() {
            if self.topics().contains(topic) {
                continue;
            }
            match cluster::find(producer, self.pool.config(), self.creation, topic, end).await {
                Ok(()) => {
                    self.topics().insert(topic.to_owned());
                }
                Err(answer) => run.refuse_topic(topic, &answer),
            }
        }
    }

    fn forget_doubtful(&self, run: &Run<'_>) {
        let mut topics = self.topics();
        for topic in run.doubtful_topics() {
            topics.remove(topic);
        }
    }
}

#[async_trait]
impl Sink for Kafka {
    fn kind(&self) -> &'static str {
        "kafka"
    }

    fn needs_destination(&self) -> bool {
        true
    }

    async fn publish(&self, batch: &[Message<'_>], deadline: Instant) -> Vec<Answer> {
        let mut run = Run::new(batch, self.batch_size, self.max_message_bytes);
        let left = deadline.saturating_duration_since(Instant::now());
        let Some(first) = batch.first().filter(|_| !left.is_zero()) else {
            return run.answers(&Ending::default());
        };
        let mut producer = match self.pool.lend(first.queue, left) {
            Ok(producer) => producer,
            Err(error) => return vec![Answer::refused(Cause::Sink, error); batch.len()],
        };
        let end = producer.end(deadline);
        self.look_up(&mut run, &mut producer, end).await;
        let fatal = send(&mut run, &mut producer, end).await;
        self.forget_doubtful(&run);
        run.answers(&Ending { fatal, trouble: producer.trouble() })
    }

    async fn check(&self, deadline: Instant) -> Result<String, String> {
        cluster::check(&self.pool, &self.findings, deadline).await
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}

/// Sends what may be sent until everything is answered, the time is over or the producer fails; then nothing is in
/// flight any more. Says why the producer failed.
async fn send(run: &mut Run<'_>, producer: &mut Lent<'_>, end: Instant) -> Option<String> {
    loop {
        let in_time = hand_over(run, producer, end);
        if in_time && producer.outstanding() == 0 {
            return None;
        }
        let event = if in_time { timeout_at(end, producer.event()).await.ok() } else { None };
        let fatal = match event {
            Some(Event::Report(report)) => {
                run.report(report);
                None
            }
            Some(Event::Denied(_)) => None,
            Some(Event::Fatal(error)) => Some(error),
            None => {
                purge(run, producer).await;
                return None;
            }
        };
        if fatal.is_some() {
            producer.spend();
            purge(run, producer).await;
            return fatal;
        }
    }
}

/// Puts into the producer's queue what may be sent; false when the time is over.
fn hand_over(run: &mut Run<'_>, producer: &mut Lent<'_>, end: Instant) -> bool {
    while Instant::now() < end {
        let Some((index, topic, message)) = run.next() else { return true };
        match producer.send(index, topic, message) {
            Ok(()) => run.sent(index),
            Err(Code::QueueFull) if producer.outstanding() > 0 => {
                run.put_back(index);
                return true;
            }
            Err(Code::Fatal) => {
                producer.spend();
                run.reject(index, fatal_answer(&producer.fatal()));
            }
            Err(code) => {
                // It takes this topic for missing, or takes nothing at all: the next one will see for itself.
                if code != Code::MessageSizeTooLarge {
                    producer.spend();
                }
                run.not_taken(index, code);
            }
        }
    }
    false
}

/// Takes everything back and waits for each report, so that nothing of this batch is delivered behind a later one.
async fn purge(run: &mut Run<'_>, producer: &mut Lent<'_>) {
    if producer.outstanding() == 0 {
        return;
    }
    producer.purge();
    let end = Instant::now() + PURGE_TIMEOUT;
    while producer.outstanding() > 0 {
        match timeout_at(end, producer.event()).await {
            Ok(Event::Report(report)) => run.report(report),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    run.give_up();
}
