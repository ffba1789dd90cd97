//! SQLite or PostgreSQL behind one type. The statements are the same on both; only how to begin is not.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use sqlx::Transaction;
use sqlx::postgres::{PgPool, PgPoolOptions, Postgres};
use sqlx::sqlite::{Sqlite, SqliteConnectOptions, SqliteJournalMode, SqlitePool};

/// How long a statement waits for another one's lock on SQLite, and a request for a connection.
const PATIENCE: Duration = Duration::from_secs(30);

/// A pool of connections.
#[derive(Clone, Debug)]
pub(crate) enum Database {
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

/// An open transaction.
pub(crate) enum Tx {
    Postgres(Transaction<'static, Postgres>),
    Sqlite(Transaction<'static, Sqlite>),
}

/// `on_engine!(tx: Tx, tx => …)` runs the same expression on either engine.
macro_rules! on_engine {
    ($value:expr, $kind:ident, $inner:ident => $body:expr) => {
        match $value {
            $crate::database::$kind::Postgres($inner) => $body,
            $crate::database::$kind::Sqlite($inner) => $body,
        }
    };
}
pub(crate) use on_engine;

impl Database {
    /// Opens `sqlite://FILE` (made when it is missing) or `postgres://…`, and makes these tables.
    pub(crate) async fn open(url: &str, tables: &'static str) -> Result<Self> {
        let database = if url.starts_with("sqlite:") {
            let options: SqliteConnectOptions = url.parse()?;
            // In WAL mode, readers and the one writer do not wait for each other. The relay wants it too.
            let options = options.create_if_missing(true).journal_mode(SqliteJournalMode::Wal);
            Self::Sqlite(SqlitePool::connect_with(options.busy_timeout(PATIENCE)).await.context(CANNOT_OPEN)?)
        } else if url.starts_with("postgres:") || url.starts_with("postgresql:") {
            Self::Postgres(
                PgPoolOptions::new().acquire_timeout(PATIENCE).connect(url).await.context(CANNOT_OPEN)?,
            )
        } else {
            bail!("--database must begin with sqlite:// or postgres://");
        };
        let mut tx = database.begin().await?;
        if let Tx::Postgres(tx) = &mut tx {
            // IF NOT EXISTS alone fails when two processes find nothing at the same time.
            sqlx::query("SELECT pg_advisory_xact_lock(7241)").execute(&mut **tx).await?;
        }
        on_engine!(&mut tx, Tx, tx => sqlx::raw_sql(tables).execute(&mut **tx).await.map(|_| ())?);
        tx.commit().await?;
        Ok(database)
    }

    /// Begins a transaction that will write. On SQLite it waits here for the one write lock: begun as a reader, it
    /// could find at its first write that another writer was faster, and only start again.
    pub(crate) async fn begin(&self) -> Result<Tx, sqlx::Error> {
        Ok(match self {
            Self::Postgres(pool) => Tx::Postgres(pool.begin().await?),
            Self::Sqlite(pool) => Tx::Sqlite(pool.begin_with("BEGIN IMMEDIATE").await?),
        })
    }
}

impl Tx {
    /// Makes everything since `begin` true at once. Dropped instead, nothing of it ever was.
    pub(crate) async fn commit(self) -> Result<(), sqlx::Error> {
        on_engine!(self, Tx, tx => tx.commit().await)
    }
}

const CANNOT_OPEN: &str = "cannot open the database of --database";
