//! The kafka sink beside a loop around librdkafka, both with `acks=all` and an idempotent producer.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use outbox_sinks::{Message, Sink, SinkConfig, build};
use outbox_store::{Event, Payload};
use outbox_tests::brokers::kafka::Kafka;
use rdkafka::ClientConfig;
use rdkafka::producer::{FutureProducer, FutureRecord};

use crate::workload::Workload;

/// Batches at once, as a queue of the relay has them.
const IN_FLIGHT: usize = 2;

/// Prints both rates of each run, and their ratio.
pub(crate) async fn run(work: Workload) -> Result<()> {
    let kafka = Kafka::start(1)?;
    let brokers = kafka.brokers();
    let events: Arc<Vec<Event>> = Arc::new((0..work.rows).map(|n| event(&work, n)).collect());
    for run in 0..work.runs {
        let bare = bare(&brokers, &events, &work, &format!("bare-{run}")).await?;
        let sink = through_the_sink(&brokers, &events, &work, &format!("sink-{run}")).await?;
        let rate = |took: Duration| f64::from(work.rows) / took.as_secs_f64();
        println!("bare {:.0}/s  sink {:.0}/s  ratio {:.2}", rate(bare), rate(sink), rate(sink) / rate(bare));
    }
    Ok(())
}

fn event(work: &Workload, n: u32) -> Event {
    let pad = "x".repeat(work.pad() as usize);
    Event {
        payload: Payload::Json(format!("{{\"n\":{n},\"pad\":\"{pad}\"}}").into()),
        ..Event::bare(i64::from(n), format!("k{}", n % work.keys))
    }
}

/// As much in flight as the sink has, each delivery awaited.
async fn bare(brokers: &str, events: &[Event], work: &Workload, topic: &str) -> Result<Duration> {
    create(brokers, topic).await?;
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", "1")
        .set("partitioner", "murmur2_random")
        .create()?;
    let began = Instant::now();
    let mut waiting = std::collections::VecDeque::new();
    for event in events {
        if waiting.len() >= work.batch as usize * IN_FLIGHT {
            delivered(waiting.pop_front()).await?;
        }
        let body = event.payload.bytes().context("a body")?;
        let record = FutureRecord::to(topic).key(&event.aggregate_id).payload(body.as_ref());
        waiting.push_back(producer.send_result(record).map_err(|(error, _)| error)?);
    }
    while let Some(next) = waiting.pop_front() {
        delivered(Some(next)).await?;
    }
    Ok(began.elapsed())
}

async fn delivered(delivery: Option<rdkafka::producer::DeliveryFuture>) -> Result<()> {
    if let Some(delivery) = delivery {
        delivery.await?.map_err(|(error, _)| error)?;
    }
    Ok(())
}

async fn through_the_sink(
    brokers: &str,
    events: &Arc<Vec<Event>>,
    work: &Workload,
    topic: &str,
) -> Result<Duration> {
    create(brokers, topic).await?;
    let sink = sink(brokers, false)?;
    let began = Instant::now();
    let batches = events.len().div_ceil(work.batch as usize);
    let next = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..IN_FLIGHT {
        let (sink, events, next) = (Arc::clone(&sink), Arc::clone(events), Arc::clone(&next));
        let (size, topic) = (work.batch as usize, topic.to_owned());
        tasks.spawn(async move {
            loop {
                let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if at >= batches {
                    return anyhow::Ok(());
                }
                let batch = &events[at * size..((at + 1) * size).min(events.len())];
                publish(&*sink, batch, &topic).await?;
            }
        });
    }
    for ended in tasks.join_all().await {
        ended?;
    }
    let took = began.elapsed();
    sink.close().await;
    Ok(took)
}

async fn publish(sink: &dyn Sink, batch: &[Event], topic: &str) -> Result<()> {
    let message = |event| Message {
        event,
        queue: "default",
        destination: Some(Cow::Borrowed(topic)),
        headers: Vec::new(),
        body: event.payload.bytes().cloned(),
    };
    let messages: Vec<Message<'_>> = batch.iter().map(message).collect();
    let answers = sink.publish(&messages, tokio::time::Instant::now() + Duration::from_secs(60)).await;
    ensure!(answers.iter().all(outbox_sinks::Answer::is_acked), "not everything was acknowledged");
    Ok(())
}

/// A topic of four partitions, made by the sink itself.
async fn create(brokers: &str, topic: &str) -> Result<()> {
    let sink = sink(brokers, true)?;
    let work = Workload { rows: 1, keys: 1, payload: 1, batch: 1, runs: 1 };
    publish(&*sink, &[event(&work, 0)], topic).await?;
    sink.close().await;
    Ok(())
}

fn sink(brokers: &str, create: bool) -> Result<Arc<dyn Sink>> {
    let options = serde_json::json!({ "type": "kafka", "brokers": brokers, "create": create });
    let config: SinkConfig = serde_json::from_value(options)?;
    build("bench", &config).map_err(anyhow::Error::msg)
}
