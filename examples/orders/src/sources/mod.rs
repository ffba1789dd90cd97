//! Where events come from: a module for each of the relay's sinks.
//!
//! Every source hands out an event again until it is acknowledged, which the consumer does after its transaction. What a
//! crash in between leaves behind is a duplicate, and never a gap.

mod file;
mod http;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use async_trait::async_trait;

use crate::balances::Balances;
use crate::event::Event;

/// RabbitMQ's exchange, to which the relay publishes and consumers bind their queues.
pub(crate) const EXCHANGE: &str = "orders";
/// Messages that a broker may send ahead of their acknowledgement.
#[cfg(any(feature = "nats", feature = "rabbitmq", feature = "redis"))]
const AHEAD: u16 = 100;

/// JetStream's stream for a subject: its name has no dots.
pub(crate) fn stream_name(subject: &str) -> String {
    subject.replace('.', "-")
}

/// A stream of events, one at a time.
#[async_trait]
pub(crate) trait Source: Send {
    /// Waits for the next event.
    async fn next(&mut self) -> Result<Event>;

    /// The event that `next` gave last is done with: it need not come again.
    async fn acknowledge(&mut self) -> Result<()>;
}

/// Which events a consumer wants, and in whose name it reads them.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Subscription {
    /// Topic, routing key, stream or subject that the relay delivers to.
    #[arg(long, default_value = "account.events")]
    pub(crate) topic: String,
    /// Consumer group, or on RabbitMQ the queue: where the broker remembers how far this consumer is.
    #[arg(long, default_value = "balances")]
    pub(crate) group: String,
}

/// A source by its address.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    File(PathBuf),
    /// Where to listen for the relay's requests: `host:port`.
    Http(String),
    /// `host:port`, several with commas.
    Kafka(String),
    Nats(String),
    RabbitMq(String),
    Redis(String),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once(':').unwrap_or_default();
        let place = || rest.trim_start_matches("//").trim_end_matches('/').to_owned();
        Ok(match scheme {
            "file" => Self::File(rest.into()),
            "http" => Self::Http(place()),
            "kafka" => Self::Kafka(place()),
            "nats" => Self::Nats(text.to_owned()),
            "amqp" => Self::RabbitMq(text.to_owned()),
            "redis" => Self::Redis(text.to_owned()),
            _ => {
                let known =
                    "file:PATH, kafka://HOST:PORT, amqp://…, redis://…, nats://… or http://LISTEN:PORT";
                return Err(format!("write {known}"));
            }
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Http(listen) => write!(f, "http://{listen}"),
            Self::Kafka(brokers) => write!(f, "kafka://{brokers}"),
            Self::Nats(url) | Self::RabbitMq(url) | Self::Redis(url) => f.write_str(url),
        }
    }
}

impl Address {
    /// Connects.
    pub(crate) async fn open(&self, subscription: &Subscription) -> Result<Box<dyn Source>> {
        Ok(match self {
            Self::File(path) => Box::new(file::Lines::of(path.clone())),
            Self::Http(address) => Box::new(http::Webhook::listen(address).await?),
            #[cfg(feature = "kafka")]
            Self::Kafka(brokers) => Box::new(kafka::Group::join(brokers, subscription)?),
            #[cfg(feature = "nats")]
            Self::Nats(url) => Box::new(nats::Durable::open(url, subscription).await?),
            #[cfg(feature = "rabbitmq")]
            Self::RabbitMq(url) => Box::new(rabbitmq::Queue::open(url, subscription).await?),
            #[cfg(feature = "redis")]
            Self::Redis(url) => Box::new(redis::Group::join(url, subscription).await?),
            #[allow(unreachable_patterns, reason = "with every feature there is nothing left")]
            _ => {
                let _ = subscription;
                anyhow::bail!(
                    "this build cannot read from there: build it with the cargo feature of the broker's name"
                )
            }
        })
    }
}

/// Applies events until something fails. Then nothing is retried here: the process ends, and whoever supervises it
/// starts it again. Events that were not acknowledged come again.
pub(crate) async fn consume(source: &mut dyn Source, balances: &Balances) -> Result<()> {
    loop {
        let event = source.next().await?;
        balances.apply(&event).await?;
        source.acknowledge().await?;
    }
}
