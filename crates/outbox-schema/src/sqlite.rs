use std::collections::HashSet;

use sqlx::sqlite::SqliteArguments;
use sqlx::{Arguments, AssertSqlSafe, SqliteConnection};
use uuid::Uuid;

use crate::batch::Table;
use crate::values::{self, Value};
use crate::{EnqueueError, NewEvent};

/// How many rows were inserted.
pub(crate) async fn insert(
    connection: &mut SqliteConnection,
    table: &Table,
    events: &[NewEvent],
) -> Result<u64, EnqueueError> {
    let sql = AssertSqlSafe(values::insert(table, events.len()));
    // One text a number of events: only the usual one is worth a place in the statement cache.
    let query = sqlx::query_with(sql, arguments(events)?).persistent(events.len() == 1);
    Ok(query.execute(connection).await?.rows_affected())
}

/// The ids that were inserted.
pub(crate) async fn insert_returning(
    connection: &mut SqliteConnection,
    table: &Table,
    events: &[NewEvent],
) -> Result<HashSet<Uuid>, EnqueueError> {
    let sql = AssertSqlSafe(values::insert_returning(table, events.len()));
    let query = sqlx::query_scalar_with::<_, String, _>(sql, arguments(events)?).persistent(false);
    let ids = query.fetch_all(connection).await?;
    ids.iter()
        .map(|id| {
            Uuid::parse_str(id).map_err(|error| EnqueueError::Database(sqlx::Error::Decode(error.into())))
        })
        .collect()
}

fn arguments(events: &[NewEvent]) -> Result<SqliteArguments, sqlx::Error> {
    let mut arguments = SqliteArguments::default();
    for value in values::values(events) {
        let added = match value {
            Value::Text(text) => arguments.add(text.as_deref()),
            Value::Blob(bytes) => arguments.add(bytes),
            Value::Integer(number) => arguments.add(number),
        };
        added.map_err(sqlx::Error::Encode)?;
    }
    Ok(arguments)
}
