//! Raw properties of librdkafka, and which of them the relay does not accept.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::secret::redact;

/// Properties by name. Shown without secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Properties(BTreeMap<String, String>);

/// A value as it may be written in a configuration.
#[derive(Deserialize)]
#[serde(untagged)]
enum Value {
    Text(String),
    Switch(bool),
    Integer(i64),
    Number(f64),
}

impl<'de> Deserialize<'de> for Properties {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = BTreeMap::<String, Value>::deserialize(deserializer)?;
        let text = |value| match value {
            Value::Text(text) => text,
            Value::Switch(on) => on.to_string(),
            Value::Integer(number) => number.to_string(),
            Value::Number(number) => number.to_string(),
        };
        Ok(Self(values.into_iter().map(|(name, value)| (name, text(value))).collect()))
    }
}

impl Serialize for Properties {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, redact(name, value))))
    }
}

impl fmt::Debug for Properties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(name, value)| (name, redact(name, value)))).finish()
    }
}

/// Properties that have an option of their own, which is named.
const OWN_OPTION: &[(&str, &str)] = &[
    ("bootstrap.servers", "brokers"),
    ("metadata.broker.list", "brokers"),
    ("client.id", "client_id"),
    ("compression.type", "compression"),
    ("compression.codec", "compression"),
    ("linger.ms", "linger"),
    ("queue.buffering.max.ms", "linger"),
    ("batch.size", "batch_size"),
    ("message.max.bytes", "max_message_bytes"),
    ("partitioner", "partitioner"),
    ("request.timeout.ms", "request_timeout"),
    ("socket.connection.setup.timeout.ms", "connect_timeout"),
    ("security.protocol", "tls` and `sasl_mechanism"),
    ("ssl.ca.location", "ca_file"),
    ("ssl.certificate.location", "cert_file"),
    ("ssl.key.location", "key_file"),
    ("ssl.ca.pem", "ca_file"),
    ("ssl.certificate.pem", "cert_file"),
    ("ssl.key.pem", "key_file"),
    ("ssl.key.password", "key_password"),
    ("sasl.mechanism", "sasl_mechanism"),
    ("sasl.mechanisms", "sasl_mechanism"),
    ("sasl.username", "sasl_username"),
    ("sasl.password", "sasl_password"),
];

/// Properties that follow from a queue's `publish_timeout`, and why nothing else may set them.
const DERIVED: &[&str] = &["delivery.timeout.ms", "message.timeout.ms"];

/// Properties that can lose messages, their order or their acknowledgements, with what they would do.
const UNSAFE: &[(&str, &str)] = &[
    ("acks", "with less than all replicas an acknowledged message can be lost"),
    ("request.required.acks", "with less than all replicas an acknowledged message can be lost"),
    ("enable.idempotence", "without it retries duplicate messages and change their order"),
    ("retries", "a message that is given up before its deadline is overtaken by the next of its key"),
    (
        "message.send.max.retries",
        "a message that is given up before its deadline is overtaken by the next of its key",
    ),
    ("enable.gapless.guarantee", "every refused message would end the producer"),
    ("transactional.id", "the relay commits no transactions, so that consumers would never see a message"),
    ("queuing.strategy", "anything but first in, first out changes the order of a key"),
    ("delivery.report.only.error", "acknowledgements would never arrive"),
    (
        "allow.auto.create.topics",
        "a misspelt destination would become a topic; `create = true` makes topics on purpose",
    ),
    ("plugin.library.paths", "plugins may change anything"),
    ("test.mock.num.brokers", "messages would go to a broker in memory"),
];

const IN_FLIGHT: &[&str] = &["max.in.flight", "max.in.flight.requests.per.connection"];

impl Properties {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Refuses what has an option of its own and, unless allowed, what would break no loss or order.
    pub(super) fn check(&self, allow_unsafe: bool) -> Result<(), String> {
        for (name, value) in self.iter() {
            if let Some((_, option)) = OWN_OPTION.iter().find(|(own, _)| *own == name) {
                return Err(format!("the property `{name}` is set by the option `{option}`; use that"));
            }
            if DERIVED.contains(&name) {
                return Err(format!(
                    "the property `{name}` follows from each queue's `publish_timeout`, so that it lies between it and the lease; leave it out"
                ));
            }
            if allow_unsafe {
                continue;
            }
            if let Some(why) = unsafe_because(name, value) {
                return Err(format!(
                    "the property `{name}` is refused: {why}; leave it out, or set `allow_unsafe = true` to lose messages on purpose"
                ));
            }
        }
        Ok(())
    }
}

fn unsafe_because(name: &str, value: &str) -> Option<&'static str> {
    if IN_FLIGHT.contains(&name) {
        let fits = value.parse().is_ok_and(|requests: u32| (1..=5).contains(&requests));
        return (!fits).then_some("an idempotent producer keeps order with 1 to 5 requests in flight");
    }
    UNSAFE.iter().find(|(property, _)| *property == name).map(|(_, why)| *why)
}
