use std::collections::HashSet;

use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments, AssertSqlSafe, SqliteConnection};
use uuid::Uuid;

use crate::{EnqueueError, NewEvent};

const INSERT: &str = include_str!("sql/sqlite_insert.sql");
const INSERT_RETURNING: &str = include_str!("sql/sqlite_insert_returning.sql");
const ROW: &str = include_str!("sql/sqlite_row.sql");

/// How many rows were inserted.
pub(crate) async fn insert(
    connection: &mut SqliteConnection,
    table: &str,
    events: &[NewEvent],
) -> Result<u64, EnqueueError> {
    let query = sqlx::query_with(AssertSqlSafe(statement(INSERT, table, events.len())), arguments(events)?);
    // One text a number of events: only the usual one is worth a place in the statement cache.
    let done = query.persistent(events.len() == 1).execute(connection).await?;
    Ok(done.rows_affected())
}

/// The ids that were inserted.
pub(crate) async fn insert_returning(
    connection: &mut SqliteConnection,
    table: &str,
    events: &[NewEvent],
) -> Result<HashSet<Uuid>, EnqueueError> {
    let sql = AssertSqlSafe(statement(INSERT_RETURNING, table, events.len()));
    let query = sqlx::query_scalar_with::<_, String, _>(sql, arguments(events)?).persistent(false);
    let ids = query.fetch_all(connection).await?;
    ids.iter()
        .map(|id| {
            Uuid::parse_str(id).map_err(|error| EnqueueError::Database(sqlx::Error::Decode(error.into())))
        })
        .collect()
}

fn statement(sql: &str, table: &str, rows: usize) -> String {
    sql.replace("{table}", table).replace("{rows}", &vec![ROW.trim_end(); rows].join(",\n"))
}

fn arguments(events: &[NewEvent]) -> Result<SqliteArguments, sqlx::Error> {
    let mut arguments = SqliteArguments::default();
    for event in events {
        add(&mut arguments, event).map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}

fn add(arguments: &mut SqliteArguments, event: &NewEvent) -> Result<(), sqlx::error::BoxDynError> {
    arguments.add(event.event_id().to_string())?;
    arguments.add(&event.queue)?;
    arguments.add(&event.aggregate_type)?;
    arguments.add(&event.aggregate_id)?;
    arguments.add(&event.event_type)?;
    // One column without a type: TEXT is JSON, BLOB is bytes.
    match event.payload.bytes() {
        Some(bytes) => arguments.add(bytes)?,
        None => arguments.add(event.payload.json())?,
    }
    arguments.add(&event.content_type)?;
    arguments.add(event.headers_json())?;
    arguments.add(&event.destination)?;
    arguments.add(event.max_retries)?;
    arguments.add(event.priority)?;
    // Within i64: the limits are checked before.
    arguments.add(event.delay.map(|delay| delay.as_nanos().div_ceil(1_000_000) as i64))
}
