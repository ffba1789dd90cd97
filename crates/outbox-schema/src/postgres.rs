use std::collections::HashSet;

use sqlx::postgres::PgArguments;
use sqlx::{Arguments, AssertSqlSafe, PgConnection};
use uuid::Uuid;

use crate::{EnqueueError, NewEvent};

const INSERT: &str = include_str!("sql/postgres_insert.sql");
const INSERT_RETURNING: &str = include_str!("sql/postgres_insert_returning.sql");

/// How many rows were inserted.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    table: &str,
    events: &[NewEvent],
) -> Result<u64, EnqueueError> {
    let sql = INSERT.replace("{table}", table);
    let query = sqlx::query_with(AssertSqlSafe(sql), arguments(events)?);
    Ok(query.execute(connection).await?.rows_affected())
}

/// The ids that were inserted.
pub(crate) async fn insert_returning(
    connection: &mut PgConnection,
    table: &str,
    events: &[NewEvent],
) -> Result<HashSet<Uuid>, EnqueueError> {
    let sql = INSERT_RETURNING.replace("{table}", table);
    let query = sqlx::query_scalar_with(AssertSqlSafe(sql), arguments(events)?);
    Ok(query.fetch_all(connection).await?.into_iter().collect())
}

/// One array a column: the statement's text is the same for any number of events.
fn arguments(events: &[NewEvent]) -> Result<PgArguments, sqlx::Error> {
    fn column<'a, T>(events: &'a [NewEvent], value: impl Fn(&'a NewEvent) -> T) -> Vec<T> {
        events.iter().map(value).collect()
    }
    let mut arguments = PgArguments::default();
    let mut add = || -> Result<(), sqlx::error::BoxDynError> {
        arguments.add(column(events, NewEvent::event_id))?;
        arguments.add(column(events, |event| event.queue.as_str()))?;
        arguments.add(column(events, |event| event.aggregate_type.as_str()))?;
        arguments.add(column(events, |event| event.aggregate_id.as_str()))?;
        arguments.add(column(events, |event| event.event_type.as_deref()))?;
        arguments.add(column(events, |event| event.payload.json()))?;
        arguments.add(column(events, |event| event.payload.bytes()))?;
        arguments.add(column(events, |event| event.content_type.as_deref()))?;
        arguments.add(column(events, NewEvent::headers_json))?;
        arguments.add(column(events, |event| event.destination.as_deref()))?;
        // Within i32 and i64: the limits are checked before.
        arguments.add(column(events, |event| event.max_retries.map(|retries| retries as i32)))?;
        arguments.add(column(events, |event| event.priority))?;
        arguments.add(column(events, |event| event.delay.map(|delay| delay.as_micros() as i64)))
    };
    add().map_err(sqlx::Error::Encode)?;
    Ok(arguments)
}
