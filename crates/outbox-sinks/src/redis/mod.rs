//! `type = "redis"`: Redis Streams, one `XADD` an event.
//!
//! A batch has a connection to itself. Redis answers a connection's commands in their order, so nothing overtakes on
//! the way; but one `XADD` may be refused and the next one taken (memory was freed in between). So what is sent of a
//! key at once is one transaction: its entries are added all or none of them.

mod connection;
mod entry;
mod publish;
mod refusal;
mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, TlsCertificates};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout_at};

use crate::options::{self, TlsFiles};
use crate::pool::Pool;
use crate::secret::{Secret, SecretUrl};
use crate::{Answer, Cause, Message, Sink};
use connection::Server;
use entry::Trim;

/// How long replicas get to confirm a batch.
const WAIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Options of the redis sink.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// `redis://host:port/db`, `rediss://…` for TLS, `unix:///path?db=0`.
    pub url: SecretUrl,
    /// The ACL user; without it the `default` one.
    pub username: Option<String>,
    /// Its password, where the URL has none.
    pub password: Option<Secret>,
    /// PEM file with the authorities that signed the server's certificate; otherwise the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM file with the client's certificate …
    pub cert_file: Option<PathBuf>,
    /// … and its private key.
    pub key_file: Option<PathBuf>,
    /// `XADD` makes a stream that does not exist. Otherwise its events wait.
    #[serde(default, deserialize_with = "options::lenient")]
    pub create: bool,
    /// Trims a stream to about so many entries with each `XADD`. Without it nothing is trimmed.
    #[serde(default, deserialize_with = "options::lenient_option")]
    pub max_length: Option<u64>,
    /// Trims to exactly `max_length`, which is slower.
    #[serde(default, deserialize_with = "options::lenient")]
    pub max_length_exact: bool,
    /// So many replicas must have a batch before it counts as delivered.
    #[serde(default, deserialize_with = "options::lenient")]
    pub wait_replicas: u32,
    /// A batch must be in the append-only file, flushed to the disk, before it counts as delivered: of the server, and
    /// of `wait_replicas` replicas. Redis 7.2 or newer.
    #[serde(default, deserialize_with = "options::lenient")]
    pub wait_aof: bool,
    /// How long to wait for them.
    #[serde(default = "wait_timeout", with = "humantime_serde")]
    pub wait_timeout: Duration,
}

fn wait_timeout() -> Duration {
    WAIT_TIMEOUT
}

impl Config {
    /// Makes the sink; it connects with the first batch.
    ///
    /// # Errors
    /// One line that names the sink and says what is allowed.
    pub fn build(&self, name: &str) -> Result<Arc<dyn Sink>, String> {
        let needs = |what: &str| Err(format!("sinks.{name}: {what}"));
        match (self.max_length, self.max_length_exact) {
            (Some(0), _) => {
                return needs("`max_length` = 0 would keep nothing; leave it out to keep everything");
            }
            (None, true) => {
                return needs("`max_length_exact` needs `max_length`, the number of entries to keep");
            }
            _ => {}
        }
        if self.wait_timeout < Duration::from_millis(1) {
            return needs("`wait_timeout` must be at least 1ms");
        }
        let client = self.client(name)?;
        Ok(Arc::new(Streams {
            pool: Pool::new(Server { client, requirements: self.requirements() }),
            trim: self.max_length.map(|length| Trim { length, exact: self.max_length_exact }),
            create: self.create,
            confirmation: self.confirmation(),
        }))
    }

    fn client(&self, name: &str) -> Result<Client, String> {
        let refused = |error: ::redis::RedisError| {
            format!(
                "sinks.{name}: `url` = \"{}\" cannot be used: {error}; allowed are redis://host:port/db, rediss://host:port/db, unix:///path?db=0",
                self.url
            )
        };
        let info = self.url.expose().into_connection_info().map_err(refused)?;
        let info = self.log_in(name, info)?;
        let files = TlsFiles::new(&self.ca_file, &self.cert_file, &self.key_file);
        let ConnectionAddr::TcpTls { insecure, .. } = info.addr() else {
            files.need(name, false, "rediss://")?;
            return Client::open(info).map_err(refused);
        };
        if *insecure {
            return Err(format!(
                "sinks.{name}: `url` ends in #insecure, which is not supported; name the authority in `ca_file`"
            ));
        }
        // Whoever came first has installed the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let pem = files.read(name)?;
        let client_tls =
            pem.client.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        Client::build_with_tls(info, TlsCertificates { client_tls, root_cert: pem.ca })
            .map_err(|error| format!("sinks.{name}: `ca_file`, `cert_file` or `key_file`: {error}"))
    }

    fn log_in(&self, name: &str, info: ConnectionInfo) -> Result<ConnectionInfo, String> {
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let mut login = info.redis_settings().clone();
        if let Some(username) = &self.username {
            login = login.set_username(username);
        }
        if let Some(password) = &self.password {
            login = login.set_password(password.expose());
        }
        if login.username().is_some() && login.password().is_none() {
            return Err(format!("sinks.{name}: a user needs `password`, or `password_file`"));
        }
        Ok(info.set_tcp_settings(tcp).set_redis_settings(login))
    }

    fn requirements(&self) -> Vec<connection::Requirement> {
        let mut requirements = Vec::new();
        if !self.create {
            requirements.push(connection::Requirement {
                version: (6, 2),
                what: "NOMKSTREAM, without which XADD makes every stream",
                instead: "`create = true`",
            });
        }
        if self.wait_aof {
            requirements.push(connection::Requirement {
                version: (7, 2),
                what: "WAITAOF",
                instead: "`wait_aof = false`",
            });
        }
        requirements
    }

    fn confirmation(&self) -> Option<publish::Confirmation> {
        let (replicas, timeout) = (self.wait_replicas, self.wait_timeout);
        (self.wait_aof || replicas > 0).then_some(publish::Confirmation {
            aof: self.wait_aof,
            replicas,
            timeout,
        })
    }
}

/// Adds events to streams.
struct Streams {
    pool: Pool<Server>,
    trim: Option<Trim>,
    create: bool,
    confirmation: Option<publish::Confirmation>,
}

#[async_trait]
impl Sink for Streams {
    fn kind(&self) -> &'static str {
        "redis"
    }

    fn needs_destination(&self) -> bool {
        true
    }

    async fn publish(&self, batch: &[Message<'_>], deadline: Instant) -> Vec<Answer> {
        let lease = match self.pool.lease(deadline).await {
            Ok(lease) => lease,
            Err(error) => return vec![Answer::refused(Cause::Sink, error); batch.len()],
        };
        let adding = publish::Adding { lease: &lease, trim: self.trim, create: self.create, deadline };
        let mut sent = adding.send(batch).await;
        if let Some(confirmation) = &self.confirmation {
            sent = confirmation.confirm(&lease, sent, deadline).await;
        }
        // An answer that is still to come would be taken for the next batch's.
        if sent.all_answered {
            lease.give_back();
        } else {
            drop(self.pool.take_idle());
        }
        sent.answers
    }

    async fn check(&self, deadline: Instant) -> Result<String, String> {
        let lease = self.pool.lease(deadline).await?;
        let address = self.pool.address();
        let found = timeout_at(deadline, report::look(&lease)).await;
        let found = found.map_err(|_| format!("{address} does not answer"))?;
        let found = found.map_err(|error| format!("{address}: {error}"))?;
        let (replicas, aof) = self.confirmation.as_ref().map_or((0, false), |wait| (wait.replicas, wait.aof));
        lease.give_back();
        found.describe(&address, replicas, aof)
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
            (r#"{"url":"http://h"}"#, "rediss://host:port/db"),
            (r#"{"url":"redis://u:hunter2@h:port"}"#, "u:***@"),
            (r#"{"url":"redis://h","max_length":0}"#, "keep everything"),
            (r#"{"url":"redis://h","max_length_exact":"true"}"#, "needs `max_length`"),
            (r#"{"url":"redis://h","wait_timeout":"0s"}"#, "`wait_timeout`"),
            (r#"{"url":"redis://h","username":"u"}"#, "`password`"),
            (r#"{"url":"redis://h","ca_file":"/x"}"#, "rediss://"),
            (r#"{"url":"rediss://h/#insecure"}"#, "`ca_file`"),
            (r#"{"url":"rediss://h","ca_file":"/nowhere/ca.pem"}"#, "/nowhere/ca.pem"),
            (r#"{"url":"redis://h","maxlen":5}"#, "`max_length`"),
        ] {
            let error = build(json).err().expect(json);
            assert!(error.contains(expected) && !error.contains("hunter2"), "{json}: {error}");
        }
    }

    #[test]
    fn building_connects_to_nothing() {
        for json in [
            r#"{"url":"redis://nowhere.invalid:1/3","password":"p","create":true}"#,
            r#"{"url":"rediss://u:p@nowhere.invalid"}"#,
            r#"{"url":"unix:///run/redis.sock?db=2","max_length":"1000","wait_replicas":"1","wait_aof":true}"#,
        ] {
            assert_eq!(build(json).expect(json).kind(), "redis");
        }
    }
}
