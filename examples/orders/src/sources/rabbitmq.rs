//! A RabbitMQ queue of the consumer's own, bound to the exchange. What is not acknowledged when the connection ends is
//! put back.

use anyhow::{Context, Result};
use async_trait::async_trait;
use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{Connection, ConnectionProperties, Consumer, ExchangeKind};
use processed_events::EventMeta;

use super::{AHEAD, EXCHANGE, Source, Subscription};
use crate::event::Event;

pub(super) struct Queue {
    consumer: Consumer,
    unacknowledged: Option<Delivery>,
    _connection: Connection,
}

impl Queue {
    pub(super) async fn open(url: &str, subscription: &Subscription) -> Result<Self> {
        let name = ConnectionProperties::default().with_connection_name(LongString::from("orders consumer"));
        let connection = Connection::connect(url, name).await.context("cannot connect to RabbitMQ")?;
        let channel = connection.create_channel().await?;
        let (queue, routing_key) = (subscription.group.as_str(), subscription.topic.as_str());
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let none = FieldTable::default;
        channel.exchange_declare(EXCHANGE.into(), ExchangeKind::Topic, durable, none()).await?;
        let mut quorum = none();
        quorum.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), quorum).await?;
        let bind = QueueBindOptions::default();
        channel.queue_bind(queue.into(), EXCHANGE.into(), routing_key.into(), bind, none()).await?;
        channel.basic_qos(AHEAD, BasicQosOptions::default()).await?;
        let tag = ShortString::default();
        let consumer =
            channel.basic_consume(queue.into(), tag, BasicConsumeOptions::default(), none()).await?;
        Ok(Self { consumer, unacknowledged: None, _connection: connection })
    }
}

#[async_trait]
impl Source for Queue {
    async fn next(&mut self) -> Result<Event> {
        let delivery = self.consumer.next().await.context("RabbitMQ has ended the consumer")??;
        let headers = delivery.properties.headers().iter().flat_map(lapin::types::FieldTable::inner);
        let pairs = headers.filter_map(|(name, value)| match value {
            AMQPValue::LongString(text) => Some((name.as_str(), text.as_bytes())),
            _ => None,
        });
        let content_type = delivery.properties.content_type().as_ref().map(ShortString::as_str);
        let meta = EventMeta::from_amqp(content_type, pairs)?;
        let event = Event { meta, payload: delivery.data.clone() };
        self.unacknowledged = Some(delivery);
        Ok(event)
    }

    async fn acknowledge(&mut self) -> Result<()> {
        if let Some(delivery) = self.unacknowledged.take() {
            delivery.ack(BasicAckOptions::default()).await?;
        }
        Ok(())
    }
}
