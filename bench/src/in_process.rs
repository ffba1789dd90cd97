//! A relay inside the bench's own process, for workloads whose sink looks at what it gets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use outbox_postgres::{PostgresOptions, PostgresStore};
use outbox_relay::settings::{Backoff, Envelope, QueueSettings};
use outbox_relay::{Relay, RelayParts, SinkBinding};
use outbox_sinks::Sink;
use outbox_sqlite::{SqliteOptions, SqliteStore};
use outbox_store::{Published, QueuePolicy, Store};
use outbox_sweeper::SweeperSettings;

use crate::engine::{Database, Engine};

/// The default queue to one sink; delivered rows are deleted, and retries come after `retry`, without end.
pub(crate) fn relay(
    store: &Arc<dyn Store>,
    batch: u32,
    retry: Duration,
    sink: Arc<dyn Sink>,
) -> Result<Relay> {
    let mut policy = QueuePolicy::named("default");
    policy.batch = batch;
    policy.published = Published::Delete;
    policy.max_retries = 1_000_000;
    let queue = QueueSettings {
        policy: Arc::new(policy),
        sink: "bench".to_owned(),
        destination: None,
        publish_timeout: Duration::from_secs(20),
        retry: Backoff { initial: retry, factor: 1.0, max: retry, jitter: 0.0 },
    };
    let parts = RelayParts {
        name: "bench".to_owned(),
        store: Arc::clone(store),
        queues: vec![queue],
        sinks: BTreeMap::from([("bench".to_owned(), SinkBinding { sink, envelope: Envelope::Raw })]),
        sweeper: SweeperSettings { interval: Duration::from_secs(5), checkpoint: None },
        shutdown_grace: Duration::from_secs(10),
    };
    Relay::new(parts).map_err(anyhow::Error::msg)
}

/// A migrated store on an empty database.
pub(crate) async fn open(engine: Engine, database: &Database) -> Result<Arc<dyn Store>> {
    let store: Arc<dyn Store> = match engine {
        Engine::Postgres => {
            Arc::new(PostgresStore::connect(PostgresOptions::from_url(&database.url)?).await?)
        }
        Engine::Sqlite => {
            let mut options = SqliteOptions::from_url(&database.url, "bench")?;
            options.create = true;
            Arc::new(SqliteStore::open(options).await?)
        }
    };
    store.migrate().await?;
    Ok(store)
}
