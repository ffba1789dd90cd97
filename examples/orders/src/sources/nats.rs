//! A durable JetStream consumer. What is not acknowledged within [`ACK_WAIT`] is delivered again.

use std::time::Duration;

use anyhow::{Context, Error, Result};
use async_nats::jetstream::{self, Message, consumer, stream};
use async_trait::async_trait;
use futures_util::StreamExt;
use processed_events::EventMeta;

use super::{AHEAD, Source, Subscription, stream_name};
use crate::event::Event;

/// Longer than [`AHEAD`] events take.
const ACK_WAIT: Duration = Duration::from_secs(5);

pub(super) struct Durable {
    messages: consumer::pull::Stream,
    unacknowledged: Option<Message>,
}

impl Durable {
    pub(super) async fn open(url: &str, subscription: &Subscription) -> Result<Self> {
        let jetstream = jetstream::new(async_nats::connect(url).await?);
        let subjects = vec![subscription.topic.clone()];
        let name = stream_name(&subscription.topic);
        let wanted = stream::Config { name, subjects, ..stream::Config::default() };
        let stream = jetstream.get_or_create_stream(wanted).await?;
        let config = consumer::pull::Config {
            durable_name: Some(subscription.group.clone()),
            filter_subject: subscription.topic.clone(),
            ack_wait: ACK_WAIT,
            max_ack_pending: AHEAD.into(),
            ..consumer::pull::Config::default()
        };
        let consumer = stream.get_or_create_consumer(&subscription.group, config).await?;
        let messages = consumer.stream().max_messages_per_batch(AHEAD.into()).messages().await?;
        Ok(Self { messages, unacknowledged: None })
    }
}

#[async_trait]
impl Source for Durable {
    async fn next(&mut self) -> Result<Event> {
        let message = self.messages.next().await.context("the server has ended the stream")??;
        let headers = message.headers.iter().flat_map(|headers| headers.iter());
        let pairs = headers.filter_map(|(name, values)| Some((name.to_string(), values.first()?.as_str())));
        let event = Event { meta: EventMeta::from_nats(pairs)?, payload: message.payload.to_vec() };
        self.unacknowledged = Some(message);
        Ok(event)
    }

    async fn acknowledge(&mut self) -> Result<()> {
        match self.unacknowledged.take() {
            Some(message) => message.ack().await.map_err(Error::from_boxed),
            None => Ok(()),
        }
    }
}
