//! A Kafka consumer group. Only offsets of processed events are stored; librdkafka commits them from there.

use anyhow::Result;
use async_trait::async_trait;
use processed_events::EventMeta;
use rdkafka::ClientConfig;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Headers, Message, OwnedMessage};

use super::{Source, Subscription};
use crate::event::Event;

pub(super) struct Group {
    consumer: StreamConsumer,
    unacknowledged: Option<OwnedMessage>,
}

impl Group {
    pub(super) fn join(brokers: &str, subscription: &Subscription) -> Result<Self> {
        let consumer: StreamConsumer = ClientConfig::new()
            .set("bootstrap.servers", brokers)
            .set("group.id", &subscription.group)
            .set("auto.offset.reset", "earliest")
            // By default an offset is stored before the event is processed: a crash would then lose it.
            .set("enable.auto.offset.store", "false")
            .set("auto.commit.interval.ms", "1000")
            // A topic that is not there yet is looked for again.
            .set("topic.metadata.refresh.interval.ms", "1000")
            // A consumer that was killed gives its partitions up after this.
            .set("session.timeout.ms", "6000")
            .create()?;
        consumer.subscribe(&[&subscription.topic])?;
        Ok(Self { consumer, unacknowledged: None })
    }
}

#[async_trait]
impl Source for Group {
    async fn next(&mut self) -> Result<Event> {
        let message = loop {
            match self.consumer.recv().await {
                Ok(message) => break message.detach(),
                Err(KafkaError::MessageConsumption(RDKafkaErrorCode::UnknownTopicOrPartition)) => {
                    tracing::info!("the topic is not there yet");
                }
                Err(error) => return Err(error.into()),
            }
        };
        let headers = message.headers().into_iter().flat_map(Headers::iter);
        let pairs = headers.map(|header| (header.key, header.value.unwrap_or_default()));
        let meta = EventMeta::from_kafka(pairs)?;
        let event = Event { meta, payload: message.payload().unwrap_or_default().to_vec() };
        self.unacknowledged = Some(message);
        Ok(event)
    }

    async fn acknowledge(&mut self) -> Result<()> {
        if let Some(message) = self.unacknowledged.take() {
            self.consumer.store_offset(message.topic(), message.partition(), message.offset())?;
        }
        Ok(())
    }
}
