//! A consumer for tests to kill: `once-consumer URL`.
//!
//! Reads an event's id as a line, lets the event have its effect (a row in `effects`) unless it is a duplicate, says
//! `first` or `duplicate`, and stays in the middle of its transaction until it reads `commit`; then it says `committed`.

use std::io::{BufRead, Write};

use anyhow::{Context, Result, ensure};
use processed_events::{Outcome, once};
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};

enum Database {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Database {
    async fn connect(url: &str) -> Result<Self> {
        let mut database = if url.starts_with("postgres") {
            Self::Postgres(PgConnection::connect(url).await?)
        } else {
            Self::Sqlite(SqliteConnection::connect(url).await?)
        };
        // Waiting for what the killed one held has an end, however wrong things go.
        database.execute("SET lock_timeout = '60s'", "PRAGMA busy_timeout = 60000").await?;
        Ok(database)
    }

    async fn execute(&mut self, postgres: &str, sqlite: &str) -> Result<()> {
        match self {
            Self::Postgres(connection) => {
                sqlx::raw_sql(AssertSqlSafe(postgres.to_owned())).execute(connection).await?;
            }
            Self::Sqlite(connection) => {
                sqlx::raw_sql(AssertSqlSafe(sqlite.to_owned())).execute(connection).await?;
            }
        }
        Ok(())
    }

    async fn once(&mut self, id: &str) -> Result<Outcome> {
        Ok(match self {
            Self::Postgres(connection) => once(connection, id).await?,
            Self::Sqlite(connection) => once(connection, id).await?,
        })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).context("usage: once-consumer URL")?;
    let mut database = Database::connect(&url).await?;
    let mut lines = std::io::stdin().lock().lines();
    while let Some(id) = lines.next().transpose()? {
        database.execute("BEGIN", "BEGIN IMMEDIATE").await?;
        let outcome = database.once(&id).await?;
        if outcome.is_first() {
            let effect = format!("INSERT INTO effects VALUES ('{id}')");
            database.execute(&effect, &effect).await?;
        }
        say(if outcome.is_first() { "first" } else { "duplicate" })?;
        ensure!(lines.next().transpose()?.as_deref() == Some("commit"), "the next line must be `commit`");
        database.execute("COMMIT", "COMMIT").await?;
        say("committed")?;
    }
    Ok(())
}

fn say(word: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{word}")?;
    Ok(out.flush()?)
}
