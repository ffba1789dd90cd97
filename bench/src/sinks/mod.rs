//! What a sink adds to its broker's own client: the same messages, the same acknowledgements, no database.

pub(crate) mod http;
pub(crate) mod kafka;
pub(crate) mod nats;
pub(crate) mod rabbitmq;
pub(crate) mod redis;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use outbox_sinks::{Answer, Message, Sink, SinkConfig};
use outbox_store::{Event, Payload};
use tokio::task::JoinSet;

use crate::workload::{Summary, Workload};

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

    fn print(self, name: &str, work: &Workload) {
        let (bare, sink) = (Summary::of(self.bare), Summary::of(self.sink));
        println!(
            "{name}: {} messages of {} B over {} keys, batch {}, {} runs",
            work.rows, work.payload, work.keys, work.batch, work.runs
        );
        println!("  client alone  median {:.0}/s ({:.0} to {:.0})", bare.median, bare.min, bare.max);
        println!("  sink          median {:.0}/s ({:.0} to {:.0})", sink.median, sink.min, sink.max);
        println!("  sink / client = {:.2}", sink.median / bare.median);
    }
}
