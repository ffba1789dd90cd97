use bytes::Bytes;
use outbox_store::{Event, Payload, RowRef};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};
use serde::de::IgnoredAny;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::error::Error;

/// A time that never comes: the row waits behind its key's head.
pub(crate) const INFINITY: i64 = i64::MAX;

/// The database's clock, in milliseconds since 1970.
pub(crate) fn now(conn: &Connection) -> Result<i64, Error> {
    Ok(conn.prepare_cached(include_str!("sql/now.sql"))?.query_row([], |row| row.get(0))?)
}

/// Times beyond what a date can be, which only hand-written SQL makes, become the ends of time.
pub(crate) fn date(milliseconds: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(milliseconds) * 1_000_000)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// The time after a delay, always before [`INFINITY`].
pub(crate) fn after(now: i64, delay: std::time::Duration) -> i64 {
    now.saturating_add(milliseconds(delay)).min(INFINITY - 1)
}

pub(crate) fn milliseconds(duration: std::time::Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(INFINITY)
}

pub(crate) fn count(value: i64) -> u32 {
    u32::try_from(value.max(0)).unwrap_or(u32::MAX)
}

pub(crate) fn id(row: &Row<'_>, column: usize) -> Result<Uuid, Error> {
    let text = bytes(row, column)?;
    Uuid::try_parse_ascii(text).map_err(|error| {
        Error::failed(format!("outbox_tasks.id {:?}: {error}", String::from_utf8_lossy(text)))
    })
}

/// Text or a blob as it is; NULL and numbers are empty.
pub(crate) fn bytes<'r>(row: &'r Row<'_>, column: usize) -> Result<&'r [u8], Error> {
    Ok(match row.get_ref(column)? {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes,
        _ => &[],
    })
}

/// Metadata travels in headers and logs, which have no place for what is not UTF-8.
pub(crate) fn text(row: &Row<'_>, column: usize) -> Result<String, Error> {
    Ok(String::from_utf8_lossy(bytes(row, column)?).into_owned())
}

pub(crate) fn optional_text(row: &Row<'_>, column: usize) -> Result<Option<String>, Error> {
    match row.get_ref(column)? {
        ValueRef::Null => Ok(None),
        _ => text(row, column).map(Some),
    }
}

/// A row of `event.sql`. Whether text is JSON is left to [`classify`], which need not be in the transaction.
pub(crate) fn event(row: &Row<'_>, seq: i64, is_hold: bool) -> Result<Event, Error> {
    let payload = match row.get_ref(4)? {
        ValueRef::Text(text) => Payload::Text(Bytes::copy_from_slice(text)),
        ValueRef::Blob(blob) => Payload::Binary(Bytes::copy_from_slice(blob)),
        _ => Payload::Tombstone,
    };
    Ok(Event {
        id: id(row, 0)?,
        seq,
        row: RowRef(seq.cast_unsigned()),
        aggregate_type: text(row, 1)?,
        aggregate_id: text(row, 2)?,
        event_type: optional_text(row, 3)?,
        payload,
        content_type: optional_text(row, 5)?,
        headers: optional_text(row, 6)?,
        destination: optional_text(row, 7)?,
        created_at: date(row.get(8)?),
        retry_count: count(row.get(9)?),
        max_retries: row.get::<_, Option<i64>>(10)?.map(count),
        lost_count: count(row.get(11)?),
        is_hold,
    })
}

/// Tells JSON from other text.
pub(crate) fn classify(event: &mut Event) {
    if let Payload::Text(bytes) = &event.payload
        && std::str::from_utf8(bytes).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
    {
        event.payload = Payload::Json(bytes.clone());
    }
}
