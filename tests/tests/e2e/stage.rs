//! A database, a scripted sink outside the relays, and relay processes between them.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use outbox_schema::NewEvent;
use outbox_tests::postgres;
use outbox_tests::process::Relay;
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};
use tempfile::TempDir;
use uuid::Uuid;

/// How a relay is run.
const RUN: [&str; 3] = ["--log", "json", "run"];

/// Which database a test plays on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Postgres,
    Sqlite,
}

/// A connection of the test's own, to look and to edit.
pub(crate) enum Database {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Database {
    pub(crate) async fn connect(engine: Engine, url: &str) -> Result<Self> {
        Ok(match engine {
            Engine::Postgres => Self::Postgres(PgConnection::connect(url).await?),
            Engine::Sqlite => {
                let mut connection = SqliteConnection::connect(url).await?;
                sqlx::query("PRAGMA busy_timeout = 60000").execute(&mut connection).await?;
                Self::Sqlite(connection)
            }
        })
    }

    /// Runs a statement.
    pub(crate) async fn execute(&mut self, sql: &str) -> Result<()> {
        let sql = AssertSqlSafe(sql.to_owned());
        match self {
            Self::Postgres(connection) => sqlx::query(sql).execute(connection).await.map(|_| ())?,
            Self::Sqlite(connection) => sqlx::query(sql).execute(connection).await.map(|_| ())?,
        }
        Ok(())
    }

    /// The number that a query answers with.
    pub(crate) async fn number(&mut self, sql: &str) -> Result<i64> {
        let sql = AssertSqlSafe(sql.to_owned());
        Ok(match self {
            Self::Postgres(connection) => sqlx::query_scalar(sql).fetch_one(connection).await?,
            Self::Sqlite(connection) => sqlx::query_scalar(sql).fetch_one(connection).await?,
        })
    }
}

/// Where a test plays: a fresh, migrated database and a place for configurations and logs.
pub(crate) struct Stage {
    pub(crate) url: String,
    /// The same database as relays reach it.
    relays_url: String,
    directory: TempDir,
    database: Database,
    /// Everything of the configuration but `[store]`, `[relay]` and `[http]`; `RELAY` stands for the relay's name.
    play: String,
}

impl Stage {
    /// `play` is the configuration without `[store]`, `[relay]` and `[http]`; `RELAY` in it stands for the relay's name.
    pub(crate) async fn set(engine: Engine, play: String) -> Result<Self> {
        let directory = TempDir::new()?;
        let url = match engine {
            Engine::Postgres => postgres::shared()[0].create_database(None).await?,
            Engine::Sqlite => format!("sqlite://{}", directory.path().join("outbox.db").display()),
        };
        Self::build(engine, directory, url, play).await
    }

    /// The same on an empty database that is already there.
    pub(crate) async fn on(engine: Engine, url: String, play: String) -> Result<Self> {
        Self::build(engine, TempDir::new()?, url, play).await
    }

    async fn build(engine: Engine, directory: TempDir, url: String, play: String) -> Result<Self> {
        let config = write_config(&directory, &url, &play, "migrate", "off")?;
        let log = directory.path().join("migrate.log");
        let mut migrate = Relay::start(&config, &["migrate", "up"], &log)?;
        ensure!(migrate.wait(Duration::from_secs(60))?.success(), "migrate up: {}", migrate.log());
        let database = Database::connect(engine, &url).await?;
        Ok(Self { relays_url: url.clone(), url, directory, database, play })
    }

    /// Relays that start from now on reach the database server through this port instead of its own.
    pub(crate) fn relays_through(&mut self, server: u16, port: u16) {
        self.relays_url = self.url.replace(&format!(":{server}/"), &format!(":{port}/"));
    }

    /// After the database was away.
    pub(crate) async fn reconnect(&mut self) -> Result<()> {
        let engine = match self.database {
            Database::Postgres(_) => Engine::Postgres,
            Database::Sqlite(_) => Engine::Sqlite,
        };
        self.database = Database::connect(engine, &self.url).await?;
        Ok(())
    }

    /// Starts `outbox run` as a relay of this name; its log goes to `NAME.log` in the directory.
    pub(crate) fn relay(&self, name: &str) -> Result<Relay> {
        self.relay_listening(name, "off")
    }

    /// The same with probes and metrics at this address.
    pub(crate) fn relay_listening(&self, name: &str, listen: &str) -> Result<Relay> {
        let (config, log) = self.relay_files(name, listen)?;
        Relay::start(&config, &RUN, &log)
    }

    /// A relay whose wall clock is so many seconds off.
    pub(crate) fn relay_with_clock(&self, name: &str, off: i32) -> Result<Relay> {
        let (config, log) = self.relay_files(name, "off")?;
        Relay::start_with_clock(&config, &RUN, &log, off)
    }

    /// Its configuration and its log.
    fn relay_files(&self, name: &str, listen: &str) -> Result<(PathBuf, PathBuf)> {
        let config = write_config(&self.directory, &self.relays_url, &self.play, name, listen)?;
        Ok((config, self.directory.path().join(format!("{name}.log"))))
    }

    /// Runs a command to its end and returns what it printed; fails unless it succeeds.
    pub(crate) fn outbox(&self, arguments: &[&str]) -> Result<String> {
        let config = write_config(&self.directory, &self.url, &self.play, "command", "off")?;
        let log = self.directory.path().join(format!("{}.log", Uuid::now_v7()));
        let mut command = Relay::start(&config, arguments, &log)?;
        ensure!(command.wait(Duration::from_secs(60))?.success(), "{arguments:?}: {}", command.log());
        Ok(command.log())
    }

    /// Inserts a row per (key, payload number), in order, each in a transaction of its own.
    pub(crate) async fn insert(&mut self, key: &str, count: u32) -> Result<()> {
        for n in 0..count {
            let id = Uuid::now_v7();
            self.execute(&format!(
                "INSERT INTO outbox_tasks (id, aggregate_type, aggregate_id, event_type, payload)
                 VALUES ('{id}', 'Order', '{key}', 'Changed', '{{\"n\": {n}}}')"
            ))
            .await?;
        }
        Ok(())
    }

    /// Enqueues events in one transaction.
    pub(crate) async fn enqueue(&mut self, events: Vec<NewEvent>) -> Result<()> {
        match &mut self.database {
            Database::Postgres(connection) => {
                let mut tx = connection.begin().await?;
                outbox_schema::enqueue_all(&mut *tx, events).await?;
                tx.commit().await?;
            }
            Database::Sqlite(connection) => {
                let mut tx = connection.begin().await?;
                outbox_schema::enqueue_all(&mut *tx, events).await?;
                tx.commit().await?;
            }
        }
        Ok(())
    }

    /// The receipt of each row that has one.
    pub(crate) async fn receipts(&mut self) -> Result<HashMap<Uuid, String>> {
        let select = "SELECT CAST(id AS TEXT), receipt FROM outbox_tasks WHERE receipt IS NOT NULL";
        let rows: Vec<(String, String)> = match &mut self.database {
            Database::Postgres(connection) => sqlx::query_as(select).fetch_all(connection).await?,
            Database::Sqlite(connection) => sqlx::query_as(select).fetch_all(connection).await?,
        };
        rows.into_iter().map(|(id, receipt)| Ok((id.parse()?, receipt))).collect()
    }

    /// Runs a statement.
    pub(crate) async fn execute(&mut self, sql: &str) -> Result<()> {
        self.database.execute(sql).await
    }

    /// The number that a query answers with.
    pub(crate) async fn number(&mut self, sql: &str) -> Result<i64> {
        self.database.number(sql).await
    }

    /// The texts that a query answers with.
    pub(crate) async fn texts(&mut self, sql: &str) -> Result<Vec<String>> {
        let sql = AssertSqlSafe(sql.to_owned());
        Ok(match &mut self.database {
            Database::Postgres(connection) => sqlx::query_scalar(sql).fetch_all(connection).await?,
            Database::Sqlite(connection) => sqlx::query_scalar(sql).fetch_all(connection).await?,
        })
    }

    /// How many rows have this status.
    pub(crate) async fn count(&mut self, status: &str) -> Result<i64> {
        self.number(&format!("SELECT count(*) FROM outbox_tasks WHERE status = '{status}'")).await
    }

    /// Waits until a query answers with this number.
    pub(crate) async fn until(&mut self, sql: &str, wanted: i64, at_most: Duration) -> Result<()> {
        let end = tokio::time::Instant::now() + at_most;
        loop {
            let found = self.number(sql).await?;
            if found == wanted {
                return Ok(());
            }
            ensure!(tokio::time::Instant::now() < end, "{sql} is {found} and not {wanted} after {at_most:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn write_config(directory: &TempDir, url: &str, play: &str, name: &str, listen: &str) -> Result<PathBuf> {
    let path = directory.path().join(format!("{name}.toml"));
    let own =
        format!("[store]\nurl = \"{url}\"\n[relay]\nname = \"{name}\"\n[http]\nlisten = \"{listen}\"\n");
    fs::write(&path, own + &play.replace("RELAY", name))?;
    Ok(path)
}
