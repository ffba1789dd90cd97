use std::collections::HashSet;

use sqlx::postgres::PgArguments;
use sqlx::{Arguments, AssertSqlSafe, PgConnection};
use uuid::Uuid;

use crate::batch::Table;
use crate::columns::{Columns, INSERT, INSERT_RETURNING};
use crate::{EnqueueError, NewEvent};

/// How many rows were inserted.
pub(crate) async fn insert(
    connection: &mut PgConnection,
    table: &Table,
    events: &[NewEvent],
) -> Result<u64, EnqueueError> {
    let query = sqlx::query_with(AssertSqlSafe(table.render(INSERT)), arguments(events)?);
    Ok(query.execute(connection).await?.rows_affected())
}

/// The ids that were inserted.
pub(crate) async fn insert_returning(
    connection: &mut PgConnection,
    table: &Table,
    events: &[NewEvent],
) -> Result<HashSet<Uuid>, EnqueueError> {
    let query = sqlx::query_scalar_with(AssertSqlSafe(table.render(INSERT_RETURNING)), arguments(events)?);
    Ok(query.fetch_all(connection).await?.into_iter().collect())
}

fn arguments(events: &[NewEvent]) -> Result<PgArguments, sqlx::Error> {
    let columns = Columns::of(events);
    let mut arguments = PgArguments::default();
    let add = || -> Result<(), sqlx::error::BoxDynError> {
        arguments.add(columns.ids)?;
        arguments.add(columns.queues)?;
        arguments.add(columns.aggregate_types)?;
        arguments.add(columns.aggregate_ids)?;
        arguments.add(columns.event_types)?;
        arguments.add(columns.payloads)?;
        arguments.add(columns.payload_bytes)?;
        arguments.add(columns.content_types)?;
        arguments.add(columns.headers)?;
        arguments.add(columns.destinations)?;
        arguments.add(columns.max_retries)?;
        arguments.add(columns.priorities)?;
        arguments.add(columns.delays_us)
    };
    add().map_err(sqlx::Error::Encode)?;
    Ok(arguments)
}
