//! The kafka sink beside a loop around librdkafka, both with `acks=all` and an idempotent producer.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use outbox_store::Event;
use outbox_tests::brokers::kafka::Kafka;
use rdkafka::ClientConfig;
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord};
use serde_json::json;

use super::{IN_FLIGHT, Runs, event, events, publish, sink, through_the_sink};
use crate::workload::Workload;

/// Measures and prints.
pub(crate) async fn run(work: Workload) -> Result<()> {
    let kafka = Kafka::start(1)?;
    let brokers = kafka.brokers();
    let events = events(&work);
    let sink = sink(json!({ "type": "kafka", "brokers": brokers, "create": true }))?;
    let mut runs = Runs::default();
    for run in 0..work.runs {
        let [alone, through] = [format!("alone-{run}"), format!("sink-{run}")];
        for topic in [&alone, &through] {
            publish(&*sink, &[event(&work, 0)], topic).await?;
        }
        let bare = bare(&brokers, &events, &work, &alone).await?;
        runs.add(&work, bare, through_the_sink(&sink, &events, &work, &through).await?);
    }
    sink.close().await;
    runs.print("Kafka", &work);
    Ok(())
}

/// As much in flight as the sink has, each delivery awaited.
async fn bare(brokers: &str, events: &[Event], work: &Workload, topic: &str) -> Result<Duration> {
    let producer: FutureProducer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("enable.idempotence", "true")
        .set("acks", "all")
        .set("linger.ms", "1")
        .set("partitioner", "murmur2_random")
        .create()?;
    let began = Instant::now();
    let mut waiting = VecDeque::new();
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

async fn delivered(delivery: Option<DeliveryFuture>) -> Result<()> {
    if let Some(delivery) = delivery {
        delivery.await?.map_err(|(error, _)| error)?;
    }
    Ok(())
}
