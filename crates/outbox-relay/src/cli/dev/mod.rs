//! `outbox dev`: the relay at work, with events of its own.

mod orders;
mod sink;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use outbox_sqlite::{SqliteOptions, SqliteStore};
use outbox_store::{QueuePolicy, SchemaState, Store};
use outbox_sweeper::SweeperSettings;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::args::DevArgs;
use super::{Failure, database, out, signals};
use crate::settings::{Backoff, Envelope, QueueSettings};
use crate::{Relay, RelayParts, SinkBinding};
use orders::Orders;
use sink::{Committed, DevSink};

/// The queue and its sink. An event that names no queue goes here.
const QUEUE: &str = "default";
const SINK: &str = "terminal";

/// `outbox dev`
pub(super) async fn dev(args: DevArgs) -> Result<(), Failure> {
    let place = Place::new(args.file)?;
    let shutdown = signals::shutdown()?;
    let store = open(&place.file).await?;
    let orders = Orders::open(&place.file).await?;
    explain(&place)?;
    let committed = Committed::default();
    let sink = DevSink::new(committed.clone(), args.count, shutdown.clone());
    let relay = Relay::new(parts(store.clone(), sink)).map_err(anyhow::Error::msg)?;
    let producer = tokio::spawn(produce(orders, committed, shutdown.clone()));
    let ended = relay.run(shutdown.clone()).await;
    shutdown.cancel();
    let produced = producer.await.context("the demonstration's writer died")?;
    store.close().await;
    ended?;
    produced?;
    out::note(place.farewell());
    Ok(())
}

/// Where the database is. A temporary one goes when this is dropped.
struct Place {
    file: PathBuf,
    temporary: Option<TempDir>,
}

impl Place {
    fn new(file: Option<PathBuf>) -> anyhow::Result<Self> {
        if let Some(file) = file {
            let file = std::path::absolute(&file)
                .with_context(|| format!("cannot use --file {}", file.display()))?;
            return Ok(Self { file, temporary: None });
        }
        let directory = tempfile::Builder::new().prefix("outbox-dev-").tempdir();
        let directory =
            directory.context("cannot make a temporary directory; give a file with --file PATH")?;
        Ok(Self { file: directory.path().join("outbox.db"), temporary: Some(directory) })
    }

    fn farewell(&self) -> String {
        match self.temporary {
            Some(_) => "Stopped. The temporary database is removed.".to_owned(),
            None => format!("Stopped. The database stays at {}.", self.file.display()),
        }
    }
}

async fn open(file: &Path) -> anyhow::Result<Arc<dyn Store>> {
    let options =
        SqliteOptions { create: true, ..SqliteOptions::new(file, format!("dev-{}", std::process::id())) };
    let store = SqliteStore::open(options).await?;
    if let SchemaState::Newer { applied, known } = store.schema_state().await? {
        return Err(database::newer(applied, known));
    }
    store.migrate().await?;
    Ok(Arc::new(store))
}

fn parts(store: Arc<dyn Store>, sink: DevSink) -> RelayParts {
    let queue = QueueSettings {
        policy: Arc::new(QueuePolicy::named(QUEUE)),
        sink: SINK.to_owned(),
        destination: None,
        publish_timeout: crate::config::QueueConfig::default().publish_timeout,
        retry: Backoff::default(),
    };
    let binding = SinkBinding { sink: Arc::new(sink), envelope: Envelope::Raw };
    RelayParts {
        name: "dev".to_owned(),
        store,
        queues: vec![queue],
        sinks: BTreeMap::from([(SINK.to_owned(), binding)]),
        sweeper: SweeperSettings::default(),
        shutdown_grace: crate::config::RelayConfig::default().shutdown_grace,
    }
}

/// What to try next, ready to paste. The program's own path: on a fresh clone there is no `outbox` in the PATH.
fn explain(place: &Place) -> Result<(), Failure> {
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("outbox"));
    let program = quoted(&program.to_string_lossy());
    let url = quoted(&url(&place.file));
    out::line(format_args!(
        "\
An order is written every second, its event in the same transaction; the relay delivers it here.
Try in a second terminal:

  export OUTBOX_STORE__URL={url}
  {program} enqueue --aggregate-type Order --aggregate-id 1 --event-type OrderPaid --payload '{{\"by\": \"hand\"}}'
  {program} status
  {program} pause default
  {program} resume default
  {program} failed list

Ctrl-C ends it.
"
    ))
}

/// The file as `store.url` takes it.
fn url(file: &Path) -> String {
    let mut url = "sqlite://".to_owned();
    for byte in file.to_string_lossy().bytes() {
        match byte {
            b'%' | b'?' | b'#' | b' ' => url.push_str(&format!("%{byte:02X}")),
            _ => url.push(char::from(byte)),
        }
    }
    url
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/:._-+@%=".contains(c);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// Writes an order a second until `shutdown`; a failure stops everything.
async fn produce(
    mut orders: Orders,
    committed: Committed,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let result = orders.write_until(&shutdown, &committed).await;
    shutdown.cancel();
    result
}
