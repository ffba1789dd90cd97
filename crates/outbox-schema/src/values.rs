//! SQLite: one row of values an event.

use std::borrow::Cow;

use crate::NewEvent;
use crate::batch::Table;

const INSERT: &str = include_str!("sql/sqlite_insert.sql");
const INSERT_RETURNING: &str = include_str!("sql/sqlite_insert_returning.sql");
const ROW: &str = include_str!("sql/sqlite_row.sql");

/// A value as SQLite stores it.
pub(crate) enum Value<'a> {
    Text(Option<Cow<'a, str>>),
    Blob(&'a [u8]),
    Integer(Option<i64>),
}

impl<'a> Value<'a> {
    fn text(text: Option<&'a str>) -> Self {
        Self::Text(text.map(Cow::Borrowed))
    }
}

pub(crate) fn insert(table: &Table, rows: usize) -> String {
    statement(table, INSERT, rows)
}

pub(crate) fn insert_returning(table: &Table, rows: usize) -> String {
    statement(table, INSERT_RETURNING, rows)
}

fn statement(table: &Table, sql: &str, rows: usize) -> String {
    table.render(sql).replace("{rows}", &vec![ROW.trim_end(); rows].join(",\n"))
}

/// The parameters of both statements, in their order.
pub(crate) fn values(events: &[NewEvent]) -> impl Iterator<Item = Value<'_>> {
    events.iter().flat_map(row)
}

fn row(event: &NewEvent) -> [Value<'_>; 12] {
    [
        Value::Text(Some(event.event_id().to_string().into())),
        Value::text(Some(&event.queue)),
        Value::text(Some(&event.aggregate_type)),
        Value::text(Some(&event.aggregate_id)),
        Value::text(event.event_type.as_deref()),
        // One column without a type: TEXT is JSON, BLOB is bytes.
        match event.payload.bytes() {
            Some(bytes) => Value::Blob(bytes),
            None => Value::text(event.payload.json()),
        },
        Value::text(event.content_type.as_deref()),
        Value::Text(event.headers_json().map(Cow::Owned)),
        Value::text(event.destination.as_deref()),
        Value::Integer(event.max_retries.map(i64::from)),
        Value::Integer(Some(event.priority.into())),
        // Within i64: the limits are checked before.
        Value::Integer(event.delay.map(|delay| delay.as_nanos().div_ceil(1_000_000) as i64)),
    ]
}
