//! PostgreSQL through sqlx.

use std::collections::HashSet;

use sqlx::{AssertSqlSafe, PgConnection};

use crate::statements::postgres as sql;
use crate::table::Table;

pub(crate) async fn migrate(connection: &mut PgConnection, migration: String) -> Result<(), sqlx::Error> {
    // One string, hence one transaction: the lock is held until all of it is done.
    let locked = format!("{}{migration}", sql::LOCK);
    sqlx::raw_sql(AssertSqlSafe(locked)).execute(connection).await?;
    Ok(())
}

/// Whether it was inserted.
pub(crate) async fn once(
    connection: &mut PgConnection,
    table: &Table,
    id: &str,
) -> Result<bool, sqlx::Error> {
    let query = sqlx::query(AssertSqlSafe(table.fill(sql::ONCE))).bind(id);
    Ok(query.execute(connection).await?.rows_affected() == 1)
}

/// Which ones were inserted.
pub(crate) async fn first_of(
    connection: &mut PgConnection,
    table: &Table,
    ids: &[String],
    inserted: &mut HashSet<String>,
) -> Result<(), sqlx::Error> {
    let query = sqlx::query_scalar(AssertSqlSafe(table.fill(sql::FIRST_OF))).bind(ids);
    inserted.extend(query.fetch_all(connection).await?);
    Ok(())
}

/// How many were deleted.
pub(crate) async fn purge(
    connection: &mut PgConnection,
    table: &Table,
    older_than_us: i64,
    batch: u32,
) -> Result<u64, sqlx::Error> {
    let query = sqlx::query(AssertSqlSafe(table.fill(sql::PURGE))).bind(older_than_us).bind(i64::from(batch));
    Ok(query.execute(connection).await?.rows_affected())
}

/// Whether the seq was higher than the last one; the row is locked either way.
pub(crate) async fn advance(
    connection: &mut PgConnection,
    table: &Table,
    key: (&str, &str),
    seq: i64,
) -> Result<bool, sqlx::Error> {
    let query = sqlx::query(AssertSqlSafe(table.fill(sql::ADVANCE))).bind(key.0).bind(key.1).bind(seq);
    Ok(query.execute(connection).await?.rows_affected() == 1)
}

pub(crate) async fn last_seen(
    connection: &mut PgConnection,
    table: &Table,
    key: (&str, &str),
) -> Result<i64, sqlx::Error> {
    let query = sqlx::query_scalar(AssertSqlSafe(table.fill(sql::LAST_SEEN))).bind(key.0).bind(key.1);
    query.fetch_one(connection).await
}
