//! `type = "rabbitmq"`: AMQP 0.9.1 with publisher confirms, mandatory and persistent.
//!
//! Each message in flight has a channel of its own. So a return, a nack or an error that closes the channel is about
//! that message and no other, and at most one message of a key is in flight. A batch has a connection of its own
//! while it is sent: one that does not answer by the deadline, or whose batch is given up, is cut off.

mod address;
mod failure;
mod link;
mod outgoing;
mod start;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use lapin::ExchangeKind;
use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use self::link::{Endpoint, Link, Outcome, lock};
use self::outgoing::Outgoing;
use crate::batch::publish_keyed;
use crate::options::{TlsFiles, lenient};
use crate::pool::Pool;
use crate::secret::{Secret, SecretUrl};
use crate::{Answer, Cause, Message, Sink};

const BLOCKED: &str = "RabbitMQ takes no messages from publishers: its memory or disk alarm is on";

/// Options of the RabbitMQ sink.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `amqp://user:password@host:5672/vhost`, or `amqps://` with TLS.
    pub url: SecretUrl,
    /// User, when the URL names none.
    #[serde(default)]
    pub username: Option<String>,
    /// Password, when the URL has none.
    #[serde(default)]
    pub password: Option<Secret>,
    /// The exchange that routing keys are published to. Empty, the default: the nameless one, on which the routing key
    /// is a queue's name.
    #[serde(default)]
    pub exchange: String,
    /// Make an exchange, or on the nameless one a queue, that is not there.
    #[serde(default, deserialize_with = "lenient")]
    pub create: bool,
    /// The type of exchanges that are made.
    #[serde(default = "topic")]
    pub exchange_type: String,
    /// The type of queues that are made.
    #[serde(default = "quorum")]
    pub queue_type: String,
    /// Messages in flight of a batch, each on a channel of its own.
    #[serde(default = "default_in_flight", deserialize_with = "lenient")]
    pub max_in_flight: usize,
    /// How long connecting and logging in may take.
    #[serde(default = "default_timeout", with = "humantime_serde")]
    pub connection_timeout: Duration,
    /// Interval of heartbeats; a connection is given up after twice this without a sign of life.
    #[serde(default = "default_heartbeat", with = "humantime_serde")]
    pub heartbeat: Duration,
    /// Who signed the server's certificate, in PEM.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// The client's certificate, in PEM.
    #[serde(default)]
    pub cert_file: Option<PathBuf>,
    /// Its private key, PKCS#8 in PEM.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
}

fn topic() -> String {
    "topic".to_owned()
}

fn quorum() -> String {
    "quorum".to_owned()
}

fn default_in_flight() -> usize {
    256
}

fn default_timeout() -> Duration {
    Duration::from_secs(5)
}

fn default_heartbeat() -> Duration {
    Duration::from_secs(10)
}

impl Config {
    /// Makes the sink; it connects with the first batch.
    ///
    /// # Errors
    /// One line that names the sink: what is wrong with which option.
    pub fn build(&self, name: &str) -> Result<Arc<dyn Sink>, String> {
        self.connected(name).map(|sink| Arc::new(sink) as Arc<dyn Sink>)
    }

    fn connected(&self, name: &str) -> Result<RabbitMq, String> {
        let wrong = |what: String| format!("sinks.{name}: {what}");
        let uri = self.uri().map_err(wrong)?;
        if self.exchange.len() > address::LONGEST_NAME {
            return Err(wrong("`exchange` is longer than 255 bytes".to_owned()));
        }
        if self.max_in_flight == 0 {
            return Err(wrong("`max_in_flight` must be at least 1".to_owned()));
        }
        if self.connection_timeout.is_zero() {
            return Err(wrong("`connection_timeout` must be longer than 0".to_owned()));
        }
        if !["classic", "quorum", "stream"].contains(&self.queue_type.as_str()) {
            let kind = &self.queue_type;
            return Err(wrong(format!("`queue_type` = \"{kind}\"; use classic, quorum or stream")));
        }
        let files = TlsFiles::new(&self.ca_file, &self.cert_file, &self.key_file);
        files.need(name, uri.scheme == AMQPScheme::AMQPS, "amqps://")?;
        let pem = files.read(name)?;
        let utf8 = |ca| String::from_utf8(ca).map_err(|_| wrong("`ca_file` is no PEM file".to_owned()));
        let tls = OwnedTLSConfig {
            identity: pem.client.map(|(pem, key)| OwnedIdentity::PKCS8 { pem, key }),
            cert_chain: pem.ca.map(utf8).transpose()?,
        };
        let endpoint =
            Endpoint { uri, tls, timeout: self.connection_timeout, name: format!("outbox sink {name}") };
        Ok(RabbitMq { pool: Pool::new(endpoint), config: self.clone() })
    }

    fn uri(&self) -> Result<AMQPUri, String> {
        let text = self.url.expose();
        let mut uri: AMQPUri = text.parse().map_err(|_| {
            "`url` is no AMQP URL; write amqp://user:password@host:5672/vhost (amqps:// with TLS) and percent-encode what is special in a name".to_owned()
        })?;
        if uri.vhost.is_empty() {
            return Err("`url` ends with `/`, which means a virtual host without a name; leave the `/` out for the default one, or write `/%2F`".to_owned());
        }
        let place = text.rsplit_once('@').map_or(text, |(_, place)| place);
        if let Some((address, _)) = place.split_once('[').and_then(|(_, rest)| rest.split_once(']')) {
            address.clone_into(&mut uri.authority.host);
        }
        if let Some(username) = &self.username {
            uri.authority.userinfo.username.clone_from(username);
        }
        if let Some(password) = &self.password {
            password.expose().clone_into(&mut uri.authority.userinfo.password);
        }
        let heartbeat = u16::try_from(self.heartbeat.as_secs()).ok().filter(|seconds| *seconds > 0);
        uri.query.heartbeat =
            Some(heartbeat.ok_or("`heartbeat` is in whole seconds, from 1s to 18h".to_owned())?);
        Ok(uri)
    }
}

/// Publishes to RabbitMQ.
struct RabbitMq {
    pool: Pool<Endpoint>,
    config: Config,
}

#[async_trait]
impl Sink for RabbitMq {
    fn kind(&self) -> &'static str {
        "rabbitmq"
    }

    fn needs_destination(&self) -> bool {
        true
    }

    async fn publish(&self, batch: &[Message<'_>], deadline: Instant) -> Vec<Answer> {
        let all = |error: &str| vec![Answer::refused(Cause::Sink, error); batch.len()];
        let link = match self.pool.lease(deadline).await {
            Ok(link) => link,
            Err(error) => return all(&error),
        };
        if link.is_blocked() {
            link.give_back();
            return all(BLOCKED);
        }
        let routed = Routed::default();
        let concurrency = self.config.max_in_flight.min(link.channel_limit());
        let send = |message| self.send(&link, message, &routed);
        let mut answers = publish_keyed(batch, deadline, concurrency, send).await;
        routed.judge(batch, &mut answers);
        // What is silent may still lie in a buffer: its connection goes with it.
        if explain_silence(&mut answers, link.is_blocked()) {
            drop(link);
        } else {
            link.give_back();
        }
        answers
    }

    async fn check(&self, deadline: Instant) -> Result<String, String> {
        let place = self.pool.address();
        let link = self.pool.lease(deadline).await?;
        let Ok(found) = timeout_at(deadline, self.look(&link)).await else {
            return Err(format!("{place}: no answer"));
        };
        link.give_back();
        let version = start::version(&self.pool.connector.uri, deadline).await;
        let version = version.map(|version| format!(" (version {version})")).unwrap_or_default();
        found.map(|found| format!("{place}{version}: {found}")).map_err(|error| format!("{place}: {error}"))
    }

    async fn close(&self) {
        join_all(self.pool.take_idle().into_iter().map(Link::close)).await;
    }
}

impl RabbitMq {
    async fn send(&self, link: &Link, message: &Message<'_>, routed: &Routed) -> Answer {
        let outgoing = match Outgoing::new(message, &self.config.exchange, link.frame_max()) {
            Ok(outgoing) => outgoing,
            Err(error) => return Answer::refused(Cause::Message, error),
        };
        let mut outcome = link.publish(&outgoing).await;
        if self.config.create && is_missing(&outgoing, &outcome) {
            if let Err(error) = self.declare(link, &outgoing).await {
                let error = format!("{} cannot be created: {}", outgoing.address, failure::describe(&error));
                return Answer::refused(Cause::Destination, error);
            }
            outcome = link.publish(&outgoing).await;
        }
        routed.note(&outgoing, &outcome);
        answer(&outgoing, outcome)
    }

    async fn declare(&self, link: &Link, outgoing: &Outgoing) -> lapin::Result<()> {
        let address = &outgoing.address;
        if address.is_queue() {
            return link.declare_queue(&address.routing_key, &self.config.queue_type).await;
        }
        let kind = match self.config.exchange_type.as_str() {
            "direct" => ExchangeKind::Direct,
            "fanout" => ExchangeKind::Fanout,
            "headers" => ExchangeKind::Headers,
            "topic" => ExchangeKind::Topic,
            other => ExchangeKind::Custom(other.to_owned()),
        };
        link.declare_exchange(&address.exchange, kind).await
    }

    /// What of the destination can be seen from here.
    async fn look(&self, link: &Link) -> Result<String, String> {
        let exchange = &self.config.exchange;
        if link.is_blocked() {
            return Err(BLOCKED.to_owned());
        }
        if exchange.is_empty() {
            return Ok("answers; publishes to queues by name, through the default exchange".to_owned());
        }
        match link.exchange_exists(exchange).await {
            Ok(()) => Ok(format!("answers; exchange `{exchange}` is there")),
            Err(error) if failure::is_missing(&error) && self.config.create => {
                Ok(format!("answers; exchange `{exchange}` will be made with the first message"))
            }
            Err(error) if failure::is_missing(&error) => Err(format!(
                "exchange `{exchange}` does not exist; declare it, durable, or set `create = true`"
            )),
            Err(error) => Err(format!("exchange `{exchange}`: {}", failure::describe(&error))),
        }
    }
}

/// Whether what the message was sent to is not there and can be made.
fn is_missing(outgoing: &Outgoing, outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Returned { .. } => outgoing.address.is_queue(),
        Outcome::Failed(error) => failure::is_missing(error),
        _ => false,
    }
}

fn answer(outgoing: &Outgoing, outcome: Outcome) -> Answer {
    let address = &outgoing.address;
    match outcome {
        Outcome::Acked => Answer::Acked { receipt: Some(address.to_string()) },
        Outcome::Nacked => Answer::refused(
            Cause::Unclear,
            format!("RabbitMQ refused it (nack) at {address}: is a queue there at its limit?"),
        ),
        // Until it is known what became of the others.
        Outcome::Returned { reason } => Answer::refused(
            Cause::Message,
            format!("{address} is unroutable: RabbitMQ returned it with {reason}; bind a queue to it"),
        ),
        Outcome::Mixed => {
            Answer::refused(Cause::Sink, "RabbitMQ's answer was about another message than the one sent")
        }
        Outcome::Failed(error) => failure::answer(address, &error),
    }
}

/// Which exchanges routed something of a batch, and which messages came back: an unroutable message is its own fault
/// only while its exchange routes others.
#[derive(Debug, Default)]
struct Routed(Mutex<Routes>);

#[derive(Debug, Default)]
struct Routes {
    exchanges: HashSet<String>,
    /// By message id.
    returned: HashMap<String, String>,
}

impl Routed {
    fn note(&self, outgoing: &Outgoing, outcome: &Outcome) {
        let exchange = outgoing.address.exchange.clone();
        match outcome {
            Outcome::Acked | Outcome::Nacked => {
                lock(&self.0).exchanges.insert(exchange);
            }
            Outcome::Returned { .. } => {
                lock(&self.0).returned.insert(outgoing.message_id.to_string(), exchange);
            }
            Outcome::Mixed | Outcome::Failed(_) => {}
        }
    }

    fn judge(self, batch: &[Message<'_>], answers: &mut [Answer]) {
        let Routes { exchanges, returned } = self.0.into_inner().unwrap_or_default();
        for (message, answer) in batch.iter().zip(answers) {
            let Answer::Refused(refusal) = answer else { continue };
            match returned.get(&message.event.id.to_string()) {
                Some(exchange) if !exchanges.contains(exchange) => refusal.cause = Cause::Destination,
                _ => {}
            }
        }
    }
}

/// Whether anything is silent; a blocked connection is why.
fn explain_silence(answers: &mut [Answer], blocked: bool) -> bool {
    let mut any = false;
    for answer in answers {
        if let Answer::Refused(refusal) = answer
            && refusal.silent
        {
            any = true;
            if blocked {
                BLOCKED.clone_into(&mut refusal.error);
            }
        }
    }
    any
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
