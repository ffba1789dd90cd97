use bytes::Bytes;
use outbox_store::{Event, Payload};
use sqlx::postgres::PgRow;
use sqlx::{Row, ValueRef};

use crate::error::unreadable;
use crate::wire::{Tid, time_at};

/// Columns before an event's own in the result of a claim. By position: a look-up by name costs more than the value.
const FIRST: usize = 9;

/// A claimed row, and its priority.
pub(crate) fn read_event(row: &PgRow) -> Result<(i16, Event), sqlx::Error> {
    let row_ref: Tid = row.try_get_unchecked(FIRST + 1)?;
    let event = Event {
        id: row.try_get_unchecked(FIRST + 2)?,
        seq: row.try_get_unchecked(FIRST)?,
        row: row_ref.0,
        aggregate_type: row.try_get_unchecked(FIRST + 3)?,
        aggregate_id: row.try_get_unchecked(FIRST + 4)?,
        event_type: row.try_get_unchecked(FIRST + 5)?,
        payload: payload(row)?,
        content_type: row.try_get_unchecked(FIRST + 8)?,
        headers: text_at(row, FIRST + 9)?,
        destination: row.try_get_unchecked(FIRST + 10)?,
        created_at: time_at(row, FIRST + 11)?,
        retry_count: count_at(row, FIRST + 12)?.unwrap_or(0),
        max_retries: count_at(row, FIRST + 13)?,
        lost_count: count_at(row, FIRST + 14)?.unwrap_or(0),
        is_hold: row.try_get_unchecked(FIRST + 16)?,
    };
    Ok((row.try_get_unchecked(FIRST + 15)?, event))
}

fn payload(row: &PgRow) -> Result<Payload, sqlx::Error> {
    if let Some(json) = bytes_at(row, FIRST + 6)? {
        return Ok(Payload::Json(Bytes::copy_from_slice(json)));
    }
    Ok(bytes_at(row, FIRST + 7)?
        .map_or(Payload::Tombstone, |bytes| Payload::Binary(Bytes::copy_from_slice(bytes))))
}

/// The value as the server sent it: JSON is its own text, bytea its own bytes.
fn bytes_at(row: &PgRow, column: usize) -> Result<Option<&[u8]>, sqlx::Error> {
    let raw = row.try_get_raw(column)?;
    if raw.is_null() {
        return Ok(None);
    }
    raw.as_bytes().map(Some).map_err(sqlx::Error::Decode)
}

/// A JSON column's text, unparsed.
fn text_at(row: &PgRow, column: usize) -> Result<Option<String>, sqlx::Error> {
    let Some(bytes) = bytes_at(row, column)? else {
        return Ok(None);
    };
    let text = std::str::from_utf8(bytes).map_err(|error| unreadable(format!("headers: {error}")))?;
    Ok(Some(text.to_owned()))
}

fn count_at(row: &PgRow, column: usize) -> Result<Option<u32>, sqlx::Error> {
    let count: Option<i32> = row.try_get_unchecked(column)?;
    Ok(count.map(|count| u32::try_from(count).unwrap_or(0)))
}
