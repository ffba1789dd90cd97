//! From settings to a store.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use outbox_postgres::{PostgresOptions, PostgresStore};
use outbox_sqlite::{SqliteOptions, SqliteStore};
use outbox_store::{SchemaState, Store, StoreError};
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};

use crate::config::{Engine, Pooler, Settings, SqliteConfig, StoreSettings, Synchronous, WakeUp};

/// Said wherever a command needs a queue and none is configured. The keys can be pasted into a file as they are.
pub(super) const NO_QUEUE: &str = r#"no queue is configured, so there is nothing to deliver: write to outbox.toml, for a start, the two lines: queues.default.sink = "out" and: sinks.out.type = "stdout""#;

/// Makes the store, for a relay that waits for its server: a SQLite file is opened, a server is not asked yet.
pub(super) async fn unasked(settings: &Settings) -> anyhow::Result<Arc<dyn Store>> {
    Ok(store(settings, false).await?)
}

/// Opens the database as it is, and sees that it answers.
pub(super) async fn open(settings: &Settings) -> anyhow::Result<Arc<dyn Store>> {
    answering(store(settings, false).await?, settings).await
}

/// As [`open`]; a SQLite file that is missing is created.
pub(super) async fn create(settings: &Settings) -> anyhow::Result<Arc<dyn Store>> {
    answering(store(settings, true).await?, settings).await
}

async fn answering(store: Arc<dyn Store>, settings: &Settings) -> anyhow::Result<Arc<dyn Store>> {
    store.ping().await.with_context(|| format!("cannot use {}", settings.store.url))?;
    Ok(store)
}

/// A connection to the server, past the store.
pub(super) async fn postgres_connection(store: &StoreSettings) -> anyhow::Result<PgConnection> {
    let options: PgConnectOptions = store.url.expose().parse()?;
    Ok(options.connect().await?)
}

/// A connection to the file, past the store.
pub(super) async fn sqlite_connection(
    store: &StoreSettings,
    config: &SqliteConfig,
) -> anyhow::Result<SqliteConnection> {
    let path = SqliteOptions::from_url(store.url.expose(), "")?.path;
    if !path.exists() {
        let file = path.display();
        anyhow::bail!(
            "{file} does not exist: create the database with `outbox migrate up`, or check store.url"
        );
    }
    let options = SqliteConnectOptions::new().filename(path).busy_timeout(config.busy_timeout);
    Ok(options.connect().await?)
}

/// Opens the database and makes sure that its schema is what this binary needs.
pub(super) async fn migrated(settings: &Settings) -> anyhow::Result<Arc<dyn Store>> {
    let store = open(settings).await?;
    let state = store.schema_state().await.with_context(|| format!("cannot use {}", settings.store.url))?;
    require_current(&state).with_context(|| format!("cannot use {}", settings.store.url))?;
    Ok(store)
}

/// What to do about a schema that is not what this binary needs.
pub(super) fn require_current(state: &SchemaState) -> anyhow::Result<()> {
    match *state {
        SchemaState::Current { .. } => Ok(()),
        SchemaState::Missing => Err(anyhow!("the database has no outbox tables: run `outbox migrate up`")),
        SchemaState::Behind { applied, needed } => Err(anyhow!(
            "the database is at migration {applied} and this binary needs {needed}: run `outbox migrate up`"
        )),
        SchemaState::Newer { applied, known } => Err(newer(applied, known)),
    }
}

/// A database that this binary must not touch.
pub(super) fn newer(applied: i64, known: i64) -> anyhow::Error {
    anyhow!(
        "the database is at migration {applied} and this binary knows only up to {known}: use the newer outbox that migrated it"
    )
}

async fn store(settings: &Settings, create: bool) -> Result<Arc<dyn Store>, StoreError> {
    let url = settings.store.url.expose();
    match &settings.store.engine {
        Engine::Postgres(config) => {
            let options = PostgresOptions {
                schema: config.schema.clone(),
                relay: settings.relay.clone(),
                wake_up: config.wake_up == WakeUp::Notify,
                behind_pooler: config.pooler == Pooler::Transaction,
                ..PostgresOptions::from_url(url)?
            };
            Ok(Arc::new(PostgresStore::new(options)?))
        }
        Engine::Sqlite(config) => {
            let options = sqlite_options(url, config, &settings.relay, create)?;
            Ok(Arc::new(SqliteStore::open(options).await?))
        }
    }
}

fn sqlite_options(
    url: &str,
    config: &SqliteConfig,
    relay: &str,
    create: bool,
) -> Result<SqliteOptions, StoreError> {
    Ok(SqliteOptions {
        busy_timeout: config.busy_timeout,
        synchronous: match config.synchronous {
            Synchronous::Normal => outbox_sqlite::Synchronous::Normal,
            Synchronous::Full => outbox_sqlite::Synchronous::Full,
        },
        create,
        auto_checkpoint: config.checkpoint.is_some(),
        ..SqliteOptions::from_url(url, relay)?
    })
}

/// Time between WAL checkpoints; `None` where there is no WAL or others see to it.
pub(super) fn checkpoint_interval(store: &StoreSettings) -> Option<Duration> {
    match &store.engine {
        Engine::Postgres(_) => None,
        Engine::Sqlite(config) => config.checkpoint,
    }
}

/// The migrations as one script.
pub(super) fn migrations(store: &StoreSettings) -> Result<String, StoreError> {
    match &store.engine {
        Engine::Postgres(config) => outbox_postgres::migrations_sql(&config.schema),
        Engine::Sqlite(_) => Ok(outbox_sqlite::migrations_sql()),
    }
}
