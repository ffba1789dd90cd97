//! SQLite through sqlx.

use std::collections::HashSet;

use sqlx::{AssertSqlSafe, SqliteConnection};

use crate::statements::sqlite as sql;
use crate::table::Table;

pub(crate) async fn migrate(connection: &mut SqliteConnection, migration: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(migration)).execute(connection).await?;
    Ok(())
}

/// Whether it was inserted.
pub(crate) async fn once(
    connection: &mut SqliteConnection,
    table: &Table,
    id: &str,
) -> Result<bool, sqlx::Error> {
    let query = sqlx::query(AssertSqlSafe(table.fill(sql::ONCE))).bind(id);
    Ok(query.execute(connection).await?.rows_affected() == 1)
}

/// Which ones were inserted.
pub(crate) async fn first_of(
    connection: &mut SqliteConnection,
    table: &Table,
    ids: &[String],
    inserted: &mut HashSet<String>,
) -> Result<(), sqlx::Error> {
    let statement = AssertSqlSafe(table.fill(&sql::first_of(ids.len())));
    // One text a number of ids: not worth a place in the statement cache.
    let mut query = sqlx::query_scalar(statement).persistent(false);
    for id in ids {
        query = query.bind(id);
    }
    inserted.extend(query.fetch_all(connection).await?);
    Ok(())
}

/// How many were deleted.
pub(crate) async fn purge(
    connection: &mut SqliteConnection,
    table: &Table,
    older_than_ms: i64,
    batch: u32,
) -> Result<u64, sqlx::Error> {
    let query = sqlx::query(AssertSqlSafe(table.fill(sql::PURGE))).bind(older_than_ms).bind(batch);
    Ok(query.execute(connection).await?.rows_affected())
}

/// Whether the seq was higher than the last one.
pub(crate) async fn advance(
    connection: &mut SqliteConnection,
    table: &Table,
    key: (&str, &str),
    seq: i64,
) -> Result<bool, sqlx::Error> {
    let query = sqlx::query(AssertSqlSafe(table.fill(sql::ADVANCE))).bind(key.0).bind(key.1).bind(seq);
    Ok(query.execute(connection).await?.rows_affected() == 1)
}

pub(crate) async fn last_seen(
    connection: &mut SqliteConnection,
    table: &Table,
    key: (&str, &str),
) -> Result<i64, sqlx::Error> {
    let query = sqlx::query_scalar(AssertSqlSafe(table.fill(sql::LAST_SEEN))).bind(key.0).bind(key.1);
    query.fetch_one(connection).await
}
