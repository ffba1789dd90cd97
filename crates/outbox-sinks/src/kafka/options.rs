//! The options of a kafka sink, and the librdkafka properties that they become.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;
use serde::{Deserialize, Serialize};

use super::properties::Properties;
use super::{Creation, Kafka};
use crate::Sink;
use crate::options::{TlsFiles, TlsPem, lenient, lenient_option};
use crate::secret::Secret;

/// What a queue may hold locally, in KiB: several times a claim's default of bytes.
const LOCAL_QUEUE_KIB: u32 = 64 * 1024;

/// Options of the kafka sink.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The brokers to ask first, `host:port` each, separated by commas.
    pub brokers: String,
    /// How the relay calls itself in the brokers' logs and quotas.
    #[serde(default = "default_client_id")]
    pub client_id: String,
    /// How batches are compressed.
    #[serde(default)]
    pub compression: Compression,
    /// How long a message waits for company before it is sent.
    #[serde(default = "default_linger", with = "humantime_serde")]
    pub linger: Duration,
    /// Bytes of a batch of messages. Keep it below the smallest `max.message.bytes` of any topic.
    #[serde(default = "default_batch_size", deserialize_with = "lenient")]
    pub batch_size: u32,
    /// Bytes of the largest message that is sent at all; larger ones are FAILED without asking a broker.
    #[serde(default = "default_max_message_bytes", deserialize_with = "lenient")]
    pub max_message_bytes: u32,
    /// Which partition a key goes to.
    #[serde(default)]
    pub partitioner: Partitioner,
    /// How long a broker may take to acknowledge a request before it is sent again.
    #[serde(default = "default_request_timeout", with = "humantime_serde")]
    pub request_timeout: Duration,
    /// How long a connection may take, TLS and SASL included.
    #[serde(default = "default_connect_timeout", with = "humantime_serde")]
    pub connect_timeout: Duration,
    /// Talk TLS to the brokers. Needs a build with the cargo feature `kafka-tls`.
    #[serde(default, deserialize_with = "lenient")]
    pub tls: bool,
    /// PEM file of the authority that signed the brokers' certificates.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// PEM file of the client's certificate …
    #[serde(default)]
    pub cert_file: Option<PathBuf>,
    /// … and of its key.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// What the key is encrypted with.
    #[serde(default)]
    pub key_password: Option<Secret>,
    /// How to log in.
    #[serde(default)]
    pub sasl_mechanism: Option<SaslMechanism>,
    /// Who logs in.
    #[serde(default)]
    pub sasl_username: Option<String>,
    /// With what.
    #[serde(default)]
    pub sasl_password: Option<Secret>,
    /// Create topics that do not exist.
    #[serde(default, deserialize_with = "lenient")]
    pub create: bool,
    /// Partitions of a created topic; the brokers' default when left out.
    #[serde(default, deserialize_with = "lenient_option")]
    pub partitions: Option<u32>,
    /// Replicas of a created topic; the brokers' default when left out.
    #[serde(default, deserialize_with = "lenient_option")]
    pub replication_factor: Option<u32>,
    /// Further properties of librdkafka, as they are.
    #[serde(default)]
    pub properties: Properties,
    /// Accept properties that can lose messages or their order.
    #[serde(default, deserialize_with = "lenient")]
    pub allow_unsafe: bool,
}

fn default_client_id() -> String {
    "outbox".to_owned()
}

fn default_linger() -> Duration {
    Duration::from_millis(1)
}

fn default_batch_size() -> u32 {
    64 * 1024
}

/// What a broker accepts by default.
fn default_max_message_bytes() -> u32 {
    1_048_588
}

fn default_request_timeout() -> Duration {
    Duration::from_secs(30)
}

fn default_connect_timeout() -> Duration {
    Duration::from_secs(10)
}

/// How batches are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip
    Gzip,
    /// Snappy
    Snappy,
    /// LZ4
    Lz4,
    /// Zstandard
    Zstd,
}

impl Compression {
    fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// Which partition a key goes to. Those that spread a key over partitions are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Partitioner {
    /// As Java clients do, so that their topics and ours are co-partitioned.
    #[default]
    Murmur2,
    /// As librdkafka's other clients do by default (CRC32).
    Consistent,
    /// As Go's Sarama does.
    Fnv1a,
}

impl Partitioner {
    fn as_str(self) -> &'static str {
        match self {
            Self::Murmur2 => "murmur2_random",
            Self::Consistent => "consistent",
            Self::Fnv1a => "fnv1a",
        }
    }
}

/// How to log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum SaslMechanism {
    /// Name and password as they are.
    #[serde(rename = "PLAIN")]
    Plain,
    /// SCRAM with SHA-256. Needs a build with the cargo feature `kafka-tls`.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// SCRAM with SHA-512. Needs a build with the cargo feature `kafka-tls`.
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
}

impl SaslMechanism {
    fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

impl Config {
    /// Makes the sink; it connects with the first batch.
    ///
    /// # Errors
    /// One line that names the sink: an option that cannot be used, a property that would lose messages.
    pub fn build(&self, name: &str) -> Result<Arc<dyn Sink>, String> {
        let mut client = self.client_config().map_err(|error| format!("sinks.{name}: {error}"))?;
        set_certificates(&mut client, self.tls_files().read(name)?);
        let creation = self.create.then(|| Creation {
            partitions: self.partitions.map_or(-1, to_i32),
            replication_factor: self.replication_factor.map_or(-1, to_i32),
        });
        Ok(Arc::new(Kafka::new(client, self.batch_size as usize, self.max_message_bytes, creation)))
    }

    fn tls_files(&self) -> TlsFiles<'_> {
        TlsFiles::new(&self.ca_file, &self.cert_file, &self.key_file)
    }

    fn client_config(&self) -> Result<ClientConfig, String> {
        self.check_ranges()?;
        self.properties.check(self.allow_unsafe)?;
        let mut client = ClientConfig::new();
        self.set_no_loss(&mut client);
        self.set_connection(&mut client);
        self.set_security(&mut client)?;
        for (name, value) in self.properties.iter() {
            client.set(name, value);
        }
        match client.create_native_config() {
            Ok(_) => Ok(client),
            // The value may be a secret.
            Err(KafkaError::ClientConfig(_, description, property, _)) => Err(format!(
                "the property `{property}` cannot be used: {description}; see librdkafka's CONFIGURATION.md"
            )),
            Err(error) => Err(error.to_string()),
        }
    }

    fn check_ranges(&self) -> Result<(), String> {
        if self.brokers.split(',').any(|broker| broker.trim().is_empty()) {
            return Err("`brokers` names no broker; write `brokers = \"host:9092,other:9092\"`".to_owned());
        }
        if !(1000..=1_000_000_000).contains(&self.max_message_bytes) {
            return Err("`max_message_bytes` must lie between 1000 and 1000000000".to_owned());
        }
        if !(1..=1_000_000_000).contains(&self.batch_size) {
            return Err("`batch_size` must lie between 1 and 1000000000 bytes".to_owned());
        }
        if self.linger > Duration::from_secs(1) {
            return Err("`linger` must be 1s or less: it is added to every batch".to_owned());
        }
        for (option, value) in
            [("request_timeout", self.request_timeout), ("connect_timeout", self.connect_timeout)]
        {
            if !(Duration::from_secs(1)..=Duration::from_secs(300)).contains(&value) {
                return Err(format!("`{option}` must lie between 1s and 300s"));
            }
        }
        for (option, value) in
            [("partitions", self.partitions), ("replication_factor", self.replication_factor)]
        {
            if value.is_some() && !self.create {
                return Err(format!(
                    "`{option}` is for topics that the relay creates; it needs `create = true`"
                ));
            }
            if value.is_some_and(|value| value == 0 || value > i16::MAX as u32) {
                return Err(format!("`{option}` must lie between 1 and 32767"));
            }
        }
        Ok(())
    }

    fn set_no_loss(&self, client: &mut ClientConfig) {
        client
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("max.in.flight.requests.per.connection", "5")
            .set("allow.auto.create.topics", "false")
            // A topic is looked up before anything is sent to it, so one that then is not there was deleted.
            .set("topic.metadata.propagation.max.ms", "5000")
            .set(
                "queue.buffering.max.kbytes",
                LOCAL_QUEUE_KIB.max(self.max_message_bytes / 1024 + 1).to_string(),
            )
            .set("partitioner", self.partitioner.as_str())
            .set("message.max.bytes", self.max_message_bytes.to_string())
            .set("batch.size", self.batch_size.to_string())
            .set("linger.ms", millis(self.linger))
            .set("compression.type", self.compression.as_str());
    }

    fn set_connection(&self, client: &mut ClientConfig) {
        client
            .set("bootstrap.servers", &self.brokers)
            .set("client.id", &self.client_id)
            .set("request.timeout.ms", millis(self.request_timeout))
            .set("socket.connection.setup.timeout.ms", millis(self.connect_timeout))
            .set("socket.keepalive.enable", "true")
            .set("socket.nagle.disable", "true")
            .set("reconnect.backoff.ms", "100")
            // With librdkafka's ten seconds an outage of one second could outlive a publish.
            .set("reconnect.backoff.max.ms", "1000")
            .set("log.connection.close", "false");
    }

    fn set_security(&self, client: &mut ClientConfig) -> Result<(), String> {
        if self.tls && !cfg!(feature = "kafka-tls") {
            return Err("`tls = true` needs a build with the cargo feature `kafka-tls`".to_owned());
        }
        if !self.tls && (self.tls_files().any() || self.key_password.is_some()) {
            return Err("`ca_file`, `cert_file`, `key_file` and `key_password` need `tls = true`".to_owned());
        }
        if let Some(password) = &self.key_password {
            client.set("ssl.key.password", password.expose());
        }
        let sasl = self.sasl()?;
        if let Some((mechanism, username, password)) = sasl {
            client.set("sasl.mechanism", mechanism.as_str());
            client.set("sasl.username", username).set("sasl.password", password.expose());
        }
        let protocol = match (self.tls, sasl.is_some()) {
            (false, false) => "plaintext",
            (true, false) => "ssl",
            (false, true) => "sasl_plaintext",
            (true, true) => "sasl_ssl",
        };
        client.set("security.protocol", protocol);
        Ok(())
    }

    fn sasl(&self) -> Result<Option<(SaslMechanism, &str, &Secret)>, String> {
        match (self.sasl_mechanism, &self.sasl_username, &self.sasl_password) {
            (None, None, None) => Ok(None),
            (Some(mechanism), Some(username), Some(password)) => {
                if mechanism != SaslMechanism::Plain && !cfg!(feature = "kafka-tls") {
                    let name = mechanism.as_str();
                    return Err(format!(
                        "`sasl_mechanism = \"{name}\"` needs a build with the cargo feature `kafka-tls`; this one can do \"PLAIN\""
                    ));
                }
                Ok(Some((mechanism, username, password)))
            }
            _ => Err(
                "`sasl_mechanism`, `sasl_username` and `sasl_password` go together; set all three or none"
                    .to_owned(),
            ),
        }
    }
}

fn set_certificates(client: &mut ClientConfig, pem: TlsPem) {
    let text = |pem: Vec<u8>| String::from_utf8_lossy(&pem).into_owned();
    if let Some(ca) = pem.ca {
        client.set("ssl.ca.pem", text(ca));
    }
    if let Some((certificate, key)) = pem.client {
        client.set("ssl.certificate.pem", text(certificate)).set("ssl.key.pem", text(key));
    }
}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

fn to_i32(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
