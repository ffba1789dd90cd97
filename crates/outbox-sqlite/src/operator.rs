use outbox_store::{DISCARDED, FailedEvent, QueueStats, Selection};
use rusqlite::types::ToSql;
use rusqlite::{Connection, params};
use std::time::Duration;

use crate::error::Error;
use crate::keys::RawText;
use crate::rows;
use crate::settle::release_key;

/// Counts of [`QueueStats`] stop here.
const MOST_COUNTED: u32 = 1_000_000;

pub(crate) fn stats(conn: &Connection) -> Result<Vec<QueueStats>, Error> {
    let mut next = conn.prepare_cached(include_str!("sql/stats_next_queue.sql"))?;
    let mut stats = Vec::new();
    let mut queue = RawText(Vec::new());
    loop {
        let mut found = next.query([&queue])?;
        let name = found.next()?.map_or(Ok(&[][..]), |row| rows::bytes(row, 0))?;
        // None is left; a queue without a name cannot be.
        if name.is_empty() {
            return Ok(stats);
        }
        queue = RawText(name.to_vec());
        stats.push(queue_stats(conn, &queue)?);
    }
}

fn queue_stats(conn: &Connection, queue: &RawText) -> Result<QueueStats, Error> {
    let mut statement = conn.prepare_cached(include_str!("sql/stats_queue.sql"))?;
    Ok(statement.query_row(params![queue, MOST_COUNTED], |row| {
        let (ready, parked, processing): (u64, u64, u64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let (oldest, now): (Option<i64>, i64) = (row.get(5)?, row.get(8)?);
        let age =
            |created_at: i64| Duration::from_millis(now.saturating_sub(created_at).max(0).cast_unsigned());
        Ok(QueueStats {
            queue: String::from_utf8_lossy(&queue.0).into_owned(),
            pending: (ready + parked).saturating_sub(processing),
            processing,
            failed: row.get(3)?,
            blocked_keys: row.get(4)?,
            oldest_pending_age: oldest.map(age),
            last_seq: row.get(6)?,
            paused: row.get(7)?,
        })
    })?)
}

/// FAILED rows, newest first.
pub(crate) fn failed(
    conn: &Connection,
    selection: &Selection,
    limit: u32,
) -> Result<Vec<FailedEvent>, Error> {
    let (statement, argument) = match selection {
        Selection::All => (include_str!("sql/failed_all.sql"), None),
        Selection::Queue(queue) => (include_str!("sql/failed_queue.sql"), Some(queue.clone())),
        Selection::Ids(ids) => (include_str!("sql/failed_ids.sql"), Some(serde_json::json!(ids).to_string())),
    };
    let mut statement = conn.prepare_cached(statement)?;
    let mut arguments: Vec<&dyn ToSql> = vec![&limit];
    if let Some(argument) = &argument {
        arguments.push(argument);
    }
    let mut found = statement.query(arguments.as_slice())?;
    let mut events = Vec::new();
    while let Some(row) = found.next()? {
        events.push(FailedEvent {
            seq: row.get(0)?,
            id: rows::id(row, 1)?,
            queue: rows::text(row, 2)?,
            aggregate_type: rows::text(row, 3)?,
            aggregate_id: rows::text(row, 4)?,
            event_type: rows::optional_text(row, 5)?,
            retry_count: rows::count(row.get(6)?),
            lost_count: rows::count(row.get(7)?),
            last_error: rows::optional_text(row, 8)?,
            failed_at: rows::date(row.get(9)?),
        });
    }
    Ok(events)
}

/// The seqs of the FAILED rows that are meant, lowest first.
pub(crate) fn selected(conn: &Connection, selection: &Selection) -> Result<Vec<i64>, Error> {
    let mut seqs: Vec<i64> = failed(conn, selection, u32::MAX)?.iter().map(|event| event.seq).collect();
    seqs.sort_unstable();
    Ok(seqs)
}

pub(crate) fn retry_failed(conn: &Connection, seqs: &[i64]) -> Result<u64, Error> {
    let now = rows::now(conn)?;
    let mut statement = conn.prepare_cached(include_str!("sql/failed_retry.sql"))?;
    let mut changed = 0;
    for seq in seqs {
        changed += statement.execute([*seq, now])? as u64;
    }
    Ok(changed)
}

pub(crate) fn discard_failed(conn: &Connection, seqs: &[i64]) -> Result<u64, Error> {
    let now = rows::now(conn)?;
    let mut statement = conn.prepare_cached(include_str!("sql/failed_discard.sql"))?;
    let mut changed = 0;
    for seq in seqs {
        if statement.execute(params![seq, now, DISCARDED])? == 1 {
            release_key(conn, *seq)?;
            changed += 1;
        }
    }
    Ok(changed)
}
