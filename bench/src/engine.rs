//! The databases the workloads run on: private, started here, gone at the end.

use anyhow::Result;
use clap::ValueEnum;
use outbox_tests::postgres::{Options, Postgres};
use tempfile::TempDir;

/// Which database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// A private PostgreSQL server with fsync on and otherwise default settings.
    Postgres,
    /// A file in a temporary directory.
    Sqlite,
}

/// A place for databases.
pub(crate) enum Server {
    Postgres(Box<Postgres>),
    Sqlite,
}

/// An empty database; a SQLite file goes with it.
pub(crate) struct Database {
    pub(crate) url: String,
    _directory: Option<TempDir>,
}

impl Server {
    pub(crate) fn start(engine: Engine) -> Result<Self> {
        Ok(match engine {
            Engine::Postgres => Self::Postgres(Box::new(Postgres::start(Options::installed()?)?)),
            Engine::Sqlite => Self::Sqlite,
        })
    }

    pub(crate) fn engine(&self) -> Engine {
        match self {
            Self::Postgres(_) => Engine::Postgres,
            Self::Sqlite => Engine::Sqlite,
        }
    }

    pub(crate) async fn fresh_database(&self) -> Result<Database> {
        match self {
            Self::Postgres(server) => {
                Ok(Database { url: server.create_database(None).await?, _directory: None })
            }
            Self::Sqlite => {
                let directory = TempDir::new()?;
                let url = format!("sqlite://{}", directory.path().join("outbox.db").display());
                Ok(Database { url, _directory: Some(directory) })
            }
        }
    }
}
