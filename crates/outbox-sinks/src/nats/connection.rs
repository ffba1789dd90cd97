//! A connection that ends when it is dropped.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::{self, Context};
use async_nats::{
    Client, ConnectOptions, Event, HeaderMap, Request, RequestErrorKind, ServerAddr, ServerError,
};
use async_trait::async_trait;
use bytes::Bytes;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::pool::Connector;

/// How often an idle or silent server is asked whether it is there. The client gives up after the third silence.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// The client reconnects by itself and sends what it had kept. A sink answers for each message instead and connects
/// anew, so the client waits until it is dropped.
const NEVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How servers say that a user may not publish to a subject.
const DENIED: &str = "permissions violation for publish to ";

/// How to log in.
#[derive(Clone)]
pub(super) enum Login {
    Password { user: String, password: String },
    Token(String),
    Credentials(PathBuf),
}

/// How to connect.
pub(super) struct Servers {
    pub(super) addresses: Vec<ServerAddr>,
    pub(super) login: Option<Login>,
    pub(super) ca_file: Option<PathBuf>,
    /// Certificate and key.
    pub(super) client: Option<(PathBuf, PathBuf)>,
    pub(super) domain: Option<String>,
}

/// One connection.
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) jetstream: Context,
    said: watch::Receiver<Said>,
    /// Requests without an answer, those that were given up included.
    unanswered: AtomicUsize,
    _own: OwnRuntime,
}

/// What the server said that is no answer to a request.
#[derive(Debug, Default)]
struct Said {
    denied: HashSet<String>,
    last_error: Option<String>,
    lost: bool,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum Silent {
    /// Nobody listens to the subject.
    NobodyThere,
    /// The user may not publish to it.
    Denied,
    TooLarge(String),
    Lost(String),
}

/// The client's tasks write what they were given even after the client is gone. They run on a runtime of their own,
/// and end with it.
struct OwnRuntime(Option<Runtime>);

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[async_trait]
impl Connector for Servers {
    type Connection = Connection;

    fn address(&self) -> String {
        let shown = |address: &ServerAddr| format!("{}:{}", address.host(), address.port());
        self.addresses.iter().map(shown).collect::<Vec<_>>().join(",")
    }

    async fn connect(&self) -> Result<Connection, String> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("nats").enable_all().build();
        let own = OwnRuntime(Some(runtime.map_err(|error| format!("no thread for the client: {error}"))?));
        let (say, said) = watch::channel(Said::default());
        let was_connected = Arc::new(AtomicBool::new(false));
        let options = self.options(Arc::clone(&was_connected), Arc::new(say)).await?;
        let addresses = self.addresses.clone();
        let connect = async move { options.connect(addresses).await };
        let connecting = own.0.as_ref().map(|runtime| runtime.spawn(connect)).ok_or("no runtime")?;
        let client =
            connecting.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        was_connected.store(true, Ordering::Release);
        let jetstream = match &self.domain {
            Some(domain) => jetstream::with_domain(client.clone(), domain),
            None => jetstream::new(client.clone()),
        };
        Ok(Connection { client, jetstream, said, unanswered: AtomicUsize::new(0), _own: own })
    }

    async fn is_alive(&self, connection: &mut Connection, _idle: Duration) -> bool {
        connection.is_connected()
    }
}

impl Servers {
    async fn options(
        &self,
        was_connected: Arc<AtomicBool>,
        say: Arc<watch::Sender<Said>>,
    ) -> Result<ConnectOptions, String> {
        let mut options = ConnectOptions::new()
            .name("outbox")
            .ping_interval(PING_INTERVAL)
            .request_timeout(None)
            .ignore_discovered_servers()
            .reconnect_delay_callback(move |_| {
                if was_connected.load(Ordering::Acquire) { NEVER } else { Duration::ZERO }
            })
            .event_callback(move |event| {
                say.send_modify(|said| said.hear(event));
                std::future::ready(())
            });
        options = match &self.login {
            None => options,
            Some(Login::Password { user, password }) => {
                options.user_and_password(user.clone(), password.clone())
            }
            Some(Login::Token(token)) => options.token(token.clone()),
            Some(Login::Credentials(path)) => options
                .credentials_file(path)
                .await
                .map_err(|error| format!("`credentials_file` {}: {error}", path.display()))?,
        };
        if let Some(path) = &self.ca_file {
            options = options.add_root_certificates(path.clone());
        }
        if let Some((cert, key)) = &self.client {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
        Ok(options)
    }
}

impl Said {
    fn hear(&mut self, event: Event) {
        match event {
            Event::Disconnected | Event::Closed => self.lost = true,
            Event::ServerError(ServerError::Other(error)) => match denied_subject(&error) {
                Some(subject) => {
                    self.denied.insert(subject.to_owned());
                }
                None => self.last_error = Some(error),
            },
            Event::ServerError(error) => self.last_error = Some(error.to_string()),
            _ => {}
        }
    }
}

/// The subject in `Permissions Violation for Publish to "subject"`.
fn denied_subject(error: &str) -> Option<&str> {
    let start = error.get(..DENIED.len()).filter(|start| start.eq_ignore_ascii_case(DENIED))?;
    Some(error[start.len()..].trim().trim_matches('"'))
}

impl Connection {
    /// Whether it can be used.
    pub(super) fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected && !self.said.borrow().lost
    }

    /// Whether it owes no answer.
    pub(super) fn is_idle(&self) -> bool {
        self.is_connected() && self.unanswered.load(Ordering::Acquire) == 0
    }

    /// Sends a message and waits for its answer, however long that takes. Cancel-safe, but a connection whose request
    /// was given up must not be used for another batch.
    pub(super) async fn request(
        &self,
        subject: &str,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<Bytes, Silent> {
        let request = Request::new().headers(headers).payload(payload);
        self.unanswered.fetch_add(1, Ordering::AcqRel);
        let answered = tokio::select! {
            biased;
            answer = self.client.send_request(subject.to_owned(), request) => answer,
            silent = self.unheard(subject) => return Err(silent),
        };
        let error = match answered {
            Ok(message) => {
                self.unanswered.fetch_sub(1, Ordering::AcqRel);
                return Ok(message.payload);
            }
            Err(error) => error,
        };
        match error.kind() {
            RequestErrorKind::NoResponders => {
                self.unanswered.fetch_sub(1, Ordering::AcqRel);
                Err(Silent::NobodyThere)
            }
            RequestErrorKind::MaxPayloadExceeded => {
                self.unanswered.fetch_sub(1, Ordering::AcqRel);
                Err(Silent::TooLarge(error.to_string()))
            }
            _ => Err(Silent::Lost(error.to_string())),
        }
    }

    /// Waits until the server says that there will be no answer.
    async fn unheard(&self, subject: &str) -> Silent {
        let mut said = self.said.clone();
        let heard = said.wait_for(|said| said.lost || said.denied.contains(subject)).await;
        match heard {
            Ok(said) if said.denied.contains(subject) => Silent::Denied,
            Ok(said) => {
                Silent::Lost(said.last_error.clone().unwrap_or_else(|| "closed by the server".to_owned()))
            }
            Err(_) => Silent::Lost("closed".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subject_of_a_violation_is_found() {
        let mut said = Said::default();
        for error in [
            "Permissions Violation for Publish to \"orders.created\"",
            "Permissions Violation for Subscription to \"x\"",
        ] {
            said.hear(Event::ServerError(ServerError::Other(error.to_owned())));
        }
        assert_eq!(said.denied, HashSet::from(["orders.created".to_owned()]));
        assert!(said.last_error.unwrap().contains("Subscription") && !said.lost);
    }
}
