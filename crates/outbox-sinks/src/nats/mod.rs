//! `type = "nats"`: NATS JetStream, one message an event, each acknowledged by the stream that took it.
//!
//! JetStream may refuse one message and take the next (a limit was reached, a leader has changed), so at most one
//! message of a key is in flight. A repetition is told by its `Nats-Msg-Id`, the event's id.

mod connection;
mod message;
mod publish;
mod refusal;
mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_nats::ServerAddr;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use crate::options::{self, TlsFiles};
use crate::pool::Pool;
use crate::secret::{Secret, SecretUrl};
use crate::{Answer, Cause, Message, Sink, batch};
use connection::{Login, Servers};

/// After so long without an answer it is looked up whether there is a stream at all.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// Messages of a batch that wait for their acknowledgement at once.
const IN_FLIGHT: usize = 512;

/// Options of the nats sink.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `nats://host:port`, `tls://…`; several servers of a cluster with commas between them.
    pub url: SecretUrl,
    /// The user …
    pub username: Option<String>,
    /// … and the password.
    pub password: Option<Secret>,
    /// A token, where the servers want one.
    pub token: Option<Secret>,
    /// A `.creds` file with the user's JWT and seed.
    pub credentials_file: Option<PathBuf>,
    /// PEM file with the authorities that signed the servers' certificates; otherwise the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM file with the client's certificate …
    pub cert_file: Option<PathBuf>,
    /// … and its private key.
    pub key_file: Option<PathBuf>,
    /// The JetStream domain, where it is not the servers' own.
    pub domain: Option<String>,
    /// After so long without an answer it is looked up whether there is a stream for the subject.
    #[serde(default = "ack_timeout", with = "humantime_serde")]
    pub ack_timeout: Duration,
    /// Makes the stream `stream` when a subject has none. Otherwise its events wait.
    #[serde(default, deserialize_with = "options::lenient")]
    pub create: bool,
    /// The stream to make.
    pub stream: Option<String>,
    /// The subjects that it takes, with commas between them; wildcards are allowed.
    pub subjects: Option<String>,
    /// On how many servers it is kept.
    #[serde(default = "replicas", deserialize_with = "options::lenient")]
    pub replicas: usize,
    /// How long it keeps a message; for ever without it.
    #[serde(default, with = "humantime_serde")]
    pub max_age: Option<Duration>,
}

fn ack_timeout() -> Duration {
    ACK_TIMEOUT
}

fn replicas() -> usize {
    1
}

impl Config {
    /// Makes the sink; it connects with the first batch.
    ///
    /// # Errors
    /// One line that names the sink and says what is allowed.
    pub fn build(&self, name: &str) -> Result<Arc<dyn Sink>, String> {
        let servers = Servers {
            addresses: self.addresses(name)?,
            login: self.login(name)?,
            ca_file: self.ca_file.clone(),
            client: self.cert_file.clone().zip(self.key_file.clone()),
            domain: self.domain.clone(),
        };
        let create = self.new_stream(name)?;
        // Whoever came first has installed the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(Arc::new(JetStream { pool: Pool::new(servers), ack_timeout: self.ack_timeout, create }))
    }

    fn addresses(&self, name: &str) -> Result<Vec<ServerAddr>, String> {
        let refused = || {
            format!(
                "sinks.{name}: `url` = \"{}\" cannot be used; allowed are nats://host:port and tls://host:port, several with commas between them",
                self.url
            )
        };
        let parse =
            |url: &str| url.trim().parse::<ServerAddr>().ok().filter(|address| !address.is_websocket());
        let addresses: Option<Vec<_>> = self.url.expose().split(',').map(parse).collect();
        let addresses = addresses.ok_or_else(refused)?;
        let files = TlsFiles::new(&self.ca_file, &self.cert_file, &self.key_file);
        // The client reads them when it connects; what cannot be read is better said now.
        files.read(name)?;
        files.need(name, addresses.iter().any(ServerAddr::tls_required), "tls://")?;
        Ok(addresses)
    }

    fn login(&self, name: &str) -> Result<Option<Login>, String> {
        let expose = |secret: &Secret| secret.expose().to_owned();
        match (&self.username, &self.password, &self.token, &self.credentials_file) {
            (None, None, None, None) => Ok(None),
            (Some(user), Some(password), None, None) => {
                Ok(Some(Login::Password { user: user.clone(), password: expose(password) }))
            }
            (None, None, Some(token), None) => Ok(Some(Login::Token(expose(token)))),
            (None, None, None, Some(path)) => match std::fs::read(path) {
                Ok(_) => Ok(Some(Login::Credentials(path.clone()))),
                Err(error) => Err(format!(
                    "sinks.{name}: `credentials_file` = \"{}\" cannot be read: {error}; check path and permissions",
                    path.display()
                )),
            },
            _ => Err(format!(
                "sinks.{name}: log in by one of: `username` and `password`, `token`, `credentials_file`"
            )),
        }
    }

    fn new_stream(&self, name: &str) -> Result<Option<publish::NewStream>, String> {
        let (stream, subjects) = match (self.create, &self.stream, &self.subjects) {
            (true, Some(stream), Some(subjects)) => (stream, subjects),
            (true, ..) => {
                return Err(format!(
                    "sinks.{name}: `create` needs `stream`, its name, and `subjects`, what it takes: `subjects = \"orders.>\"`"
                ));
            }
            (false, None, None) => return Ok(None),
            (false, ..) => return Err(format!("sinks.{name}: `stream` and `subjects` need `create = true`")),
        };
        if stream.is_empty() || stream.contains(|c: char| c.is_whitespace() || ".*>/\\".contains(c)) {
            return Err(format!(
                "sinks.{name}: `stream` = \"{stream}\" may hold no white space and none of . * > / \\"
            ));
        }
        if !(1..=5).contains(&self.replicas) {
            return Err(format!("sinks.{name}: `replicas` = {} must be from 1 to 5", self.replicas));
        }
        Ok(Some(publish::NewStream {
            name: stream.clone(),
            subjects: subjects.split(',').map(|subject| subject.trim().to_owned()).collect(),
            replicas: self.replicas,
            max_age: self.max_age.unwrap_or_default(),
        }))
    }
}

/// Publishes to streams.
struct JetStream {
    pool: Pool<Servers>,
    ack_timeout: Duration,
    create: Option<publish::NewStream>,
}

#[async_trait]
impl Sink for JetStream {
    fn kind(&self) -> &'static str {
        "nats"
    }

    fn needs_destination(&self) -> bool {
        true
    }

    async fn publish(&self, batch: &[Message<'_>], deadline: Instant) -> Vec<Answer> {
        let lease = match self.pool.lease(deadline).await {
            Ok(lease) => lease,
            Err(error) => return vec![Answer::refused(Cause::Sink, error); batch.len()],
        };
        let publishing = publish::Publishing {
            connection: &lease,
            ack_timeout: self.ack_timeout,
            create: self.create.as_ref(),
        };
        let answers =
            batch::publish_keyed(batch, deadline, IN_FLIGHT, |message| publishing.send(message)).await;
        if lease.is_idle() {
            lease.give_back();
        } else {
            drop(self.pool.take_idle());
        }
        answers
    }

    async fn check(&self, deadline: Instant) -> Result<String, String> {
        let lease = self.pool.lease(deadline).await?;
        let address = self.pool.address();
        let found = timeout_at(deadline, report::look(&lease)).await;
        let found = found.map_err(|_| format!("{address}: JetStream does not answer"))?;
        let found = found.map_err(|error| format!("{address}: {error}"))?;
        Ok(found.describe(&address))
    }

    async fn close(&self) {
        drop(self.pool.take_idle());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(json: &str) -> Result<Arc<dyn Sink>, String> {
        serde_json::from_str::<Config>(json).map_err(|error| error.to_string())?.build("orders")
    }

    #[test]
    fn an_option_that_cannot_be_used_is_named() {
        for (json, expected) in [
            (r#"{"url":"http://h"}"#, "tls://host:port"),
            (r#"{"url":"nats://u:hunter2@h:port"}"#, "u:***@"),
            (r#"{"url":"ws://h"}"#, "tls://host:port"),
            (r#"{"url":"nats://h","username":"u"}"#, "one of: `username` and `password`"),
            (r#"{"url":"nats://h","token":"hunter2","credentials_file":"/x"}"#, "one of:"),
            (r#"{"url":"nats://h","credentials_file":"/nowhere/x.creds"}"#, "/nowhere/x.creds"),
            (r#"{"url":"nats://h","ca_file":"/nowhere/ca.pem"}"#, "/nowhere/ca.pem"),
            (r#"{"url":"nats://h","create":true,"stream":"S"}"#, "`subjects`"),
            (r#"{"url":"nats://h","stream":"S"}"#, "`create = true`"),
            (r#"{"url":"nats://h","create":"true","stream":"a.b","subjects":"a.>"}"#, "white space"),
            (r#"{"url":"nats://h","create":true,"stream":"S","subjects":"a","replicas":"9"}"#, "from 1 to 5"),
            (r#"{"url":"nats://h","passwrd":"x"}"#, "`password`"),
        ] {
            let error = build(json).err().expect(json);
            assert!(error.contains(expected) && !error.contains("hunter2"), "{json}: {error}");
        }
    }

    #[test]
    fn building_connects_to_nothing() {
        for json in [
            r#"{"url":"nats://nowhere.invalid:1"}"#,
            r#"{"url":"tls://a.invalid, tls://b.invalid:4223","token":"t","domain":"hub"}"#,
            r#"{"url":"nats://u:p@nowhere.invalid","create":true,"stream":"S","subjects":"a.>, b","max_age":"1day"}"#,
        ] {
            assert_eq!(build(json).expect(json).kind(), "nats");
        }
    }
}
