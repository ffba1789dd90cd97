//! What a sink adds to its broker's own client: the same messages, the same acknowledgements, no database.

pub(crate) mod http;
mod kafka;
mod nats;
mod rabbitmq;
mod redis;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use futures_util::future::try_join_all;
use outbox_sinks::{Answer, Message, Sink, SinkConfig};
use outbox_store::{Event, Payload};
use outbox_tests::brokers::kafka::Kafka;
use outbox_tests::brokers::nats::Nats;
use outbox_tests::brokers::rabbitmq::RabbitMq;
use outbox_tests::brokers::redis::Redis;
use serde_json::json;
use tokio::task::JoinSet;

use crate::report::Report;
use crate::workload::Workload;

/// Batches at once, as a queue of the relay has them.
pub(crate) const IN_FLIGHT: usize = 2;

/// The messages of a run.
fn events(work: &Workload) -> Arc<Vec<Event>> {
    Arc::new((0..work.rows).map(|n| event(work, n)).collect())
}

fn event(work: &Workload, n: u32) -> Event {
    let pad = "x".repeat(work.pad() as usize);
    Event {
        payload: Payload::Json(format!("{{\"n\":{n},\"pad\":\"{pad}\"}}").into()),
        ..Event::bare(i64::from(n), format!("k{}", n % work.keys))
    }
}

fn sink(options: serde_json::Value) -> Result<Arc<dyn Sink>> {
    let config: SinkConfig = serde_json::from_value(options)?;
    outbox_sinks::build("bench", &config).map_err(anyhow::Error::msg)
}

/// Takes batch after batch of the messages, for several at once.
#[derive(Clone)]
struct Batches {
    events: Arc<Vec<Event>>,
    size: usize,
    next: Arc<AtomicUsize>,
}

impl Batches {
    fn new(events: &Arc<Vec<Event>>, work: &Workload) -> Self {
        Self { events: Arc::clone(events), size: work.batch as usize, next: Arc::default() }
    }

    fn next(&self) -> Option<&[Event]> {
        let from = self.next.fetch_add(1, Ordering::Relaxed) * self.size;
        let to = (from + self.size).min(self.events.len());
        self.events.get(from..to).filter(|batch| !batch.is_empty())
    }

    /// Until all are sent, by as many senders as a queue has batches in flight.
    async fn send(self, sender: impl AsyncFn(Self) -> Result<()>) -> Result<Duration> {
        let began = Instant::now();
        try_join_all((0..IN_FLIGHT).map(|_| sender(self.clone()))).await?;
        Ok(began.elapsed())
    }
}

async fn through_the_sink(
    sink: &Arc<dyn Sink>,
    events: &Arc<Vec<Event>>,
    work: &Workload,
    destination: &str,
) -> Result<Duration> {
    let began = Instant::now();
    let batches = Batches::new(events, work);
    let mut tasks = JoinSet::new();
    for _ in 0..IN_FLIGHT {
        let (sink, batches, destination) = (Arc::clone(sink), batches.clone(), destination.to_owned());
        tasks.spawn(async move {
            while let Some(batch) = batches.next() {
                publish(&*sink, batch, &destination).await?;
            }
            anyhow::Ok(())
        });
    }
    for ended in tasks.join_all().await {
        ended?;
    }
    Ok(began.elapsed())
}

async fn publish(sink: &dyn Sink, batch: &[Event], destination: &str) -> Result<()> {
    let message = |event| Message {
        event,
        queue: "default",
        destination: Some(Cow::Borrowed(destination)),
        headers: Vec::new(),
        body: event.payload.bytes().cloned(),
    };
    let messages: Vec<Message<'_>> = batch.iter().map(message).collect();
    let answers = sink.publish(&messages, tokio::time::Instant::now() + Duration::from_secs(60)).await;
    ensure!(answers.iter().all(Answer::is_acked), "not everything was acknowledged");
    Ok(())
}

/// What each run took, the client alone and the sink.
#[derive(Default)]
struct Runs {
    bare: Vec<f64>,
    sink: Vec<f64>,
}

impl Runs {
    fn add(&mut self, work: &Workload, bare: Duration, sink: Duration) {
        self.bare.push(f64::from(work.rows) / bare.as_secs_f64());
        self.sink.push(f64::from(work.rows) / sink.as_secs_f64());
    }

    fn report(&self, name: &str, work: &Workload) -> Report {
        let mut report = Report::new(format!(
            "{name}: {} messages of {} B over {} keys, batch {}, {} runs",
            work.rows, work.payload, work.keys, work.batch, work.runs
        ));
        report.line("client alone", "messages/s", self.bare.clone());
        report.line("sink", "messages/s", self.sink.clone());
        report.ratio("sink / client", &self.sink, &self.bare);
        report
    }
}

/// Which broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// One node with default settings, `acks=all`.
    Kafka,
    /// One node, quorum queues, persistent messages, confirms.
    Rabbitmq,
    /// Flushes with every write.
    Redis,
    /// Streams on the disk with one replica.
    Nats,
}

/// A private server.
pub(crate) enum Broker {
    Kafka(Kafka),
    RabbitMq { url: String, _node: RabbitMq },
    Redis(Redis),
    Nats(Nats),
}

impl Broker {
    pub(crate) fn start(kind: Kind) -> Result<Self> {
        Ok(match kind {
            Kind::Kafka => Self::Kafka(Kafka::start(1)?),
            Kind::Rabbitmq => {
                let node = RabbitMq::start()?;
                let url = node.vhost().url();
                Self::RabbitMq { url, _node: node }
            }
            Kind::Redis => Self::Redis(Redis::start(&[])?),
            Kind::Nats => Self::Nats(Nats::start("")?),
        })
    }

    fn url(&self) -> String {
        match self {
            Self::Kafka(kafka) => kafka.brokers(),
            Self::RabbitMq { url, .. } => url.clone(),
            Self::Redis(redis) => format!("redis://127.0.0.1:{}", redis.port()),
            Self::Nats(nats) => format!("nats://127.0.0.1:{}", nats.port()),
        }
    }

    /// The sink's configuration.
    pub(crate) fn options(&self) -> serde_json::Value {
        let url = self.url();
        match self {
            Self::Kafka(_) => json!({ "type": "kafka", "brokers": url, "create": true }),
            Self::RabbitMq { .. } => json!({ "type": "rabbitmq", "url": url, "create": true }),
            Self::Redis(_) => json!({ "type": "redis", "url": url, "create": true }),
            Self::Nats(_) => json!({ "type": "nats", "url": url }),
        }
    }

    /// Makes a topic, queue or stream that has been written to.
    async fn make(&self, sink: &dyn Sink, work: &Workload, destination: &str) -> Result<()> {
        if let Self::Nats(server) = self {
            server.create_stream(destination, serde_json::Value::Null)?;
        }
        publish(sink, &[event(work, 0)], destination).await
    }

    /// The broker's client alone, with as much in flight as the sink has, everything acknowledged.
    async fn bare(&self, events: &Arc<Vec<Event>>, work: &Workload, destination: &str) -> Result<Duration> {
        let (url, batches) = (self.url(), Batches::new(events, work));
        match self {
            Self::Kafka(_) => kafka::bare(&url, events, work, destination).await,
            Self::RabbitMq { .. } => rabbitmq::bare(&url, events, work, destination).await,
            Self::Redis(_) => redis::bare(&url, batches, destination).await,
            Self::Nats(_) => nats::bare(&url, batches, work, destination).await,
        }
    }
}

/// Measures a sink beside its broker's client.
pub(crate) async fn run(kind: Kind, work: Workload) -> Result<Report> {
    let broker = Broker::start(kind)?;
    let events = events(&work);
    let sink = sink(broker.options())?;
    let mut runs = Runs::default();
    for run in 0..work.runs {
        let [alone, through] = [format!("alone-{run}"), format!("sink-{run}")];
        for destination in [&alone, &through] {
            broker.make(&*sink, &work, destination).await?;
        }
        let bare = broker.bare(&events, &work, &alone).await?;
        runs.add(&work, bare, through_the_sink(&sink, &events, &work, &through).await?);
    }
    sink.close().await;
    Ok(runs.report(&format!("{kind:?}"), &work))
}

/// Messages of a drain by the client alone to a new destination, a second; and the destination for the drain beside it.
pub(crate) async fn client_round(broker: &Broker, work: &Workload, run: usize) -> Result<(f64, String)> {
    let sink = sink(broker.options())?;
    let [alone, through] = [format!("alone-{run}"), format!("drain-{run}")];
    for destination in [&alone, &through] {
        broker.make(&*sink, work, destination).await?;
    }
    sink.close().await;
    let took = broker.bare(&events(work), work, &alone).await?;
    Ok((f64::from(work.rows) / took.as_secs_f64(), through))
}
