//! Every broker sink, between a real database and a real server, read back by a client of another library.
//!
//! A broker's own file says how it is started, killed, filled with destinations and read; what must hold for all of
//! them is in `fidelity`, `outage` and `missing`.

mod fidelity;
mod http;
pub(crate) mod kafka;
mod meta;
mod missing;
mod nats;
mod outage;
mod rabbitmq;
mod redis;
mod tls;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use base64::Engine as _;
use serde::Deserialize;
use uuid::Uuid;

/// A server that a sink delivers to.
#[async_trait]
pub(crate) trait Broker: Send + Sync {
    /// The lines of `[sinks.broker]`.
    fn sink(&self) -> String;

    /// What to write for a destination of this name, where that is more than the name.
    fn destination(&self, name: &str) -> String {
        name.to_owned()
    }

    /// Makes a topic, queue, stream that messages to `destination` end in, as durable as a sink wants it.
    async fn create(&self, destination: &str) -> Result<()>;

    /// Every message that `destination` has got, in the order of its log; several partitions one after the other.
    async fn consume(&self, destination: &str) -> Result<Vec<Received>>;

    /// Ends the server as a crash would.
    async fn kill(&self) -> Result<()>;

    /// Starts it again on the same data and address; it is ready afterwards.
    async fn start_again(&self) -> Result<()>;
}

/// A message as an independent client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    /// What its receipt should say, as far as a consumer can know; empty where it cannot.
    pub(crate) position: String,
    /// The ordering key, where the broker has such a thing.
    pub(crate) key: Option<String>,
    /// Names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    /// `None`: a tombstone.
    pub(crate) body: Option<Vec<u8>>,
}

impl Received {
    /// The event's id, of a raw envelope.
    pub(crate) fn id(&self) -> Result<Uuid> {
        let id =
            self.headers.get("outbox-id").with_context(|| format!("no outbox-id: {:?}", self.headers))?;
        Ok(id.parse()?)
    }
}

/// One line of a consumer script.
#[derive(Deserialize)]
struct Line {
    #[serde(default)]
    position: String,
    key: Option<String>,
    headers: BTreeMap<String, String>,
    /// Base64.
    body: Option<String>,
}

/// The interpreter with the brokers' client libraries: `OUTBOX_TEST_PYTHON`, which `scripts/test` sets.
fn python() -> PathBuf {
    std::env::var_os("OUTBOX_TEST_PYTHON").map_or_else(|| "python3".into(), PathBuf::from)
}

/// Runs `tests/consume/SCRIPT ARGUMENTS…`, which prints each message as a line of JSON:
/// `{"position": …, "key": …, "headers": {…}, "body": base64 or null}`.
pub(crate) async fn consume(script: &str, arguments: &[&str]) -> Result<Vec<Received>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("consume").join(script);
    let mut command = tokio::process::Command::new(python());
    command.arg(path).args(arguments).stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = command.output().await.context("cannot start python3")?;
    ensure!(
        output.status.success(),
        "{script}: {}\nThe clients come with scripts/test, which names their interpreter in OUTBOX_TEST_PYTHON.",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout)?;
    text.lines().map(received).collect()
}

fn received(line: &str) -> Result<Received> {
    let line: Line = serde_json::from_str(line).with_context(|| line.to_owned())?;
    let body = line.body.map(|body| base64::engine::general_purpose::STANDARD.decode(body)).transpose()?;
    let headers = line.headers.into_iter().map(|(name, value)| (name.to_lowercase(), value)).collect();
    Ok(Received { position: line.position, key: line.key, headers, body })
}

/// The configuration of one queue to one sink called `broker`; `more` are further lines of the queue.
pub(crate) fn play(broker: &dyn Broker, destination: &str, more: &str) -> String {
    format!(
        "[queues.default]\nsink = \"broker\"\ndestination = \"{destination}\"\n{more}\n\
         [sinks.broker]\n{}\n[sweeper]\ninterval = \"500ms\"\n",
        broker.sink()
    )
}
