//! A consumer's connection through any of the four libraries, and the databases to connect to.

use std::time::Duration;

use outbox_tests::postgres::{Postgres, shared};
use processed_events::{
    Arrival, Outcome, ProcessedError, ProcessedEvents, SeqGuard, rusqlite, tokio_postgres,
};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, SqliteConnection};
use tempfile::TempDir;
use tokio::task::block_in_place;

/// Waiting for a lock has an end, however wrong things go.
const WAIT: Duration = Duration::from_secs(60);

/// Every consumer's effect is counted here.
const EFFECTS: &str = "CREATE TABLE effects (event_id TEXT NOT NULL)";

/// An empty consumer's database.
pub(super) enum Base {
    Postgres { server: &'static Postgres, url: String },
    Sqlite(TempDir),
}

/// A library of two that an engine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Library {
    Sqlx,
    /// tokio-postgres or rusqlite.
    Native,
}

pub(super) const LIBRARIES: [Library; 2] = [Library::Sqlx, Library::Native];

impl Base {
    /// One on each server there is, and one on SQLite, with the default tables and `effects`.
    pub(super) async fn all() -> Vec<Self> {
        // In memory where there is such a place: what is killed here is processes, not the machine.
        let directory = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap();
        let mut all = vec![Self::Sqlite(directory)];
        for server in shared() {
            all.push(Self::postgres(server).await);
        }
        for base in &all {
            let mut client = base.connect(Library::Sqlx).await;
            if !base.is_postgres() {
                client.execute("PRAGMA journal_mode = WAL").await.unwrap();
            }
            client.migrate("processed_events").await.unwrap();
            client.execute(EFFECTS).await.unwrap();
        }
        all
    }

    async fn postgres(server: &'static Postgres) -> Self {
        Self::Postgres { server, url: server.create_database(None).await.unwrap() }
    }

    pub(super) fn is_postgres(&self) -> bool {
        matches!(self, Self::Postgres { .. })
    }

    /// The statement that begins a transaction as the guide recommends it.
    pub(super) fn begin(&self) -> &'static str {
        if self.is_postgres() { "BEGIN" } else { "BEGIN IMMEDIATE" }
    }

    /// The same thing in either dialect.
    pub(super) fn dialect<'a>(&self, postgres: &'a str, sqlite: &'a str) -> &'a str {
        if self.is_postgres() { postgres } else { sqlite }
    }

    /// What sqlx connects to.
    pub(super) fn url(&self) -> String {
        match self {
            Self::Postgres { url, .. } => url.clone(),
            Self::Sqlite(directory) => format!("sqlite://{}", directory.path().join("app.db").display()),
        }
    }

    pub(super) async fn connect(&self, library: Library) -> Client {
        match (self, library) {
            (Self::Postgres { url, .. }, Library::Sqlx) => {
                Client::SqlxPostgres(PgConnection::connect(url).await.unwrap())
            }
            (Self::Postgres { server, url }, Library::Native) => {
                let database = url.rsplit('/').next().unwrap();
                let options =
                    format!("host=127.0.0.1 port={} user=postgres dbname={database}", server.port());
                let connecting = ::tokio_postgres::connect(&options, ::tokio_postgres::NoTls);
                let (client, connection) = connecting.await.unwrap();
                // Its errors are the client's as well.
                tokio::spawn(async { drop(connection.await) });
                Client::TokioPostgres(client)
            }
            (Self::Sqlite(directory), Library::Sqlx) => {
                let path = directory.path().join("app.db");
                let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
                Client::SqlxSqlite(options.busy_timeout(WAIT).connect().await.unwrap())
            }
            (Self::Sqlite(directory), Library::Native) => {
                let connection = ::rusqlite::Connection::open(directory.path().join("app.db")).unwrap();
                connection.busy_timeout(WAIT).unwrap();
                Client::Rusqlite(connection)
            }
        }
    }
}

/// A connection. Transactions are begun and ended in SQL, so that all libraries are driven alike.
pub(super) enum Client {
    SqlxPostgres(PgConnection),
    TokioPostgres(::tokio_postgres::Client),
    SqlxSqlite(SqliteConnection),
    Rusqlite(::rusqlite::Connection),
}

impl Client {
    /// Runs a statement, or several.
    pub(super) async fn execute(&mut self, sql: &str) -> Result<(), ProcessedError> {
        let text = AssertSqlSafe(sql.to_owned());
        match self {
            Self::SqlxPostgres(connection) => sqlx::raw_sql(text).execute(connection).await.map(|_| ())?,
            Self::TokioPostgres(client) => client.batch_execute(sql).await?,
            Self::SqlxSqlite(connection) => sqlx::raw_sql(text).execute(connection).await.map(|_| ())?,
            // The pragmas among them answer with a row, which execute_batch bears.
            Self::Rusqlite(connection) => block_in_place(|| connection.execute_batch(sql))?,
        }
        Ok(())
    }

    /// The number that a query answers with.
    pub(super) async fn number(&mut self, sql: &str) -> i64 {
        let text = AssertSqlSafe(sql.to_owned());
        match self {
            Self::SqlxPostgres(connection) => sqlx::query_scalar(text).fetch_one(connection).await.unwrap(),
            Self::TokioPostgres(client) => client.query_one(sql, &[]).await.unwrap().get(0),
            Self::SqlxSqlite(connection) => sqlx::query_scalar(text).fetch_one(connection).await.unwrap(),
            Self::Rusqlite(connection) => connection.query_row(sql, [], |row| row.get(0)).unwrap(),
        }
    }

    pub(super) async fn migrate(&mut self, table: &str) -> Result<(), ProcessedError> {
        let sqlx = ProcessedEvents::in_table(table)?;
        match self {
            Self::SqlxPostgres(connection) => sqlx.migrate(connection).await,
            Self::TokioPostgres(client) => {
                tokio_postgres::ProcessedEvents::in_table(table)?.migrate(client).await
            }
            Self::SqlxSqlite(connection) => sqlx.migrate(connection).await,
            Self::Rusqlite(connection) => {
                let events = rusqlite::ProcessedEvents::in_table(table)?;
                block_in_place(|| events.migrate(connection))
            }
        }
    }

    pub(super) async fn once(&mut self, id: &str) -> Result<Outcome, ProcessedError> {
        match self {
            Self::SqlxPostgres(connection) => processed_events::once(connection, id).await,
            Self::TokioPostgres(client) => tokio_postgres::once(client, id).await,
            Self::SqlxSqlite(connection) => processed_events::once(connection, id).await,
            Self::Rusqlite(connection) => block_in_place(|| rusqlite::once(connection, id)),
        }
    }

    pub(super) async fn first_of(&mut self, ids: &[String]) -> Result<Vec<Outcome>, ProcessedError> {
        match self {
            Self::SqlxPostgres(connection) => processed_events::first_of(connection, ids).await,
            Self::TokioPostgres(client) => tokio_postgres::first_of(client, ids).await,
            Self::SqlxSqlite(connection) => processed_events::first_of(connection, ids).await,
            Self::Rusqlite(connection) => block_in_place(|| rusqlite::first_of(connection, ids)),
        }
    }

    pub(super) async fn purge(&mut self, older_than: Duration, batch: u32) -> Result<u64, ProcessedError> {
        let sqlx = ProcessedEvents::default();
        match self {
            Self::SqlxPostgres(connection) => sqlx.purge(connection, older_than, batch).await,
            Self::TokioPostgres(client) => {
                tokio_postgres::ProcessedEvents::default().purge(client, older_than, batch).await
            }
            Self::SqlxSqlite(connection) => sqlx.purge(connection, older_than, batch).await,
            Self::Rusqlite(connection) => {
                let events = rusqlite::ProcessedEvents::default();
                block_in_place(|| events.purge(connection, older_than, batch))
            }
        }
    }

    pub(super) async fn migrate_guard(&mut self) -> Result<(), ProcessedError> {
        let sqlx = SeqGuard::default();
        match self {
            Self::SqlxPostgres(connection) => sqlx.migrate(connection).await,
            Self::TokioPostgres(client) => tokio_postgres::SeqGuard::default().migrate(client).await,
            Self::SqlxSqlite(connection) => sqlx.migrate(connection).await,
            Self::Rusqlite(connection) => {
                block_in_place(|| rusqlite::SeqGuard::default().migrate(connection))
            }
        }
    }

    pub(super) async fn advance(&mut self, id: &str, seq: i64) -> Result<Arrival, ProcessedError> {
        let sqlx = SeqGuard::default();
        match self {
            Self::SqlxPostgres(connection) => sqlx.advance(connection, "Order", id, seq).await,
            Self::TokioPostgres(client) => {
                tokio_postgres::SeqGuard::default().advance(client, "Order", id, seq).await
            }
            Self::SqlxSqlite(connection) => sqlx.advance(connection, "Order", id, seq).await,
            Self::Rusqlite(connection) => {
                let guard = rusqlite::SeqGuard::default();
                block_in_place(|| guard.advance(connection, "Order", id, seq))
            }
        }
    }

    /// Waits until so many sessions of this PostgreSQL database wait for a lock.
    pub(super) async fn until_waiting(&mut self, sessions: i64) {
        let waiting = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let end = tokio::time::Instant::now() + WAIT;
        while self.number(waiting).await < sessions {
            assert!(tokio::time::Instant::now() < end, "nobody waits for a lock");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
