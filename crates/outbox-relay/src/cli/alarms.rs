//! What only `outbox check` asks the database: too rare, and too much for people, to be part of a store.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection};

use super::database;
use crate::config::{Engine, StoreSettings};

/// What is wrong in one queue.
#[derive(Debug)]
pub(super) struct Alarm {
    pub(super) queue: String,
    /// Keys held because of their destination.
    pub(super) held_keys: i64,
    /// Why one of them is.
    pub(super) reason: Option<String>,
    /// Claims that should have been swept.
    pub(super) expired_claims: i64,
}

impl From<(String, i64, Option<String>, i64)> for Alarm {
    fn from((queue, held_keys, reason, expired_claims): (String, i64, Option<String>, i64)) -> Self {
        Self { queue, held_keys, reason, expired_claims }
    }
}

/// Looks for keys that are held, and for claims whose lease ran out longer than `overdue` ago.
pub(super) async fn alarms(store: &StoreSettings, overdue: Duration) -> anyhow::Result<Vec<Alarm>> {
    let overdue_ms = i64::try_from(overdue.as_millis()).unwrap_or(i64::MAX);
    let rows: Vec<(String, i64, Option<String>, i64)> = match &store.engine {
        Engine::Postgres(config) => {
            let mut connection = database::postgres_connection(store).await?;
            let schema = format!("\"{}\"", config.schema.replace('"', "\"\""));
            let sql = include_str!("../sql/postgres_alarms.sql").replace("{schema}", &schema);
            // The schema's name is quoted.
            let query = sqlx::query_as(AssertSqlSafe(sql)).bind(overdue_ms).persistent(false);
            let rows = query.fetch_all(&mut connection).await?;
            connection.close().await?;
            rows
        }
        Engine::Sqlite(config) => {
            let mut connection = database::sqlite_connection(store, config).await?;
            let query = sqlx::query_as(include_str!("../sql/sqlite_alarms.sql")).bind(overdue_ms);
            let rows = query.fetch_all(&mut connection).await?;
            connection.close().await?;
            rows
        }
    };
    Ok(rows.into_iter().map(Alarm::from).collect())
}
