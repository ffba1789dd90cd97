//! A loop around librdkafka, with `acks=all` and an idempotent producer as the sink has them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use outbox_store::Event;
use rdkafka::ClientConfig;
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord};

use super::IN_FLIGHT;
use crate::workload::Workload;

/// As much in flight as the sink has, each delivery awaited.
pub(super) async fn bare(brokers: &str, events: &[Event], work: &Workload, topic: &str) -> Result<Duration> {
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
