use outbox_store::{MAX_RETRIES_EXCEEDED, OnFailed, Ordering, QueuePolicy, Swept, SweptRow};
use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use crate::error::Error;
use crate::rows;
use crate::settle::{hold_key, release_key};

/// A claim whose lease has run out.
struct Expired {
    token: i64,
    relay: String,
    task_count: u64,
    seq_from: Option<i64>,
    seq_to: Option<i64>,
}

pub(crate) fn sweep(conn: &Connection, policy: &QueuePolicy) -> Result<Option<Swept>, Error> {
    let now = rows::now(conn)?;
    let Some(expired) = expired(conn, policy, now)? else { return Ok(None) };
    let claimed: Option<u64> = conn
        .prepare_cached(include_str!("sql/claim_delete.sql"))?
        .query_row([expired.token], |row| row.get(0))
        .optional()?;
    debug_assert_eq!(claimed, Some(expired.task_count));
    let lost = lost_rows(conn, policy, &expired, now)?;
    let mut swept = Swept {
        token: expired.token,
        relay: expired.relay,
        recovered: 0,
        event_types: Vec::new(),
        most_lost: 0,
        failed: None,
    };
    for row in lost {
        // A row that was alone when its relays died is not innocent.
        let guilty =
            expired.task_count == 1 && row.lost_count >= row.max_retries.unwrap_or(policy.max_retries);
        let lost_count = row.lost_count.saturating_add(1);
        if guilty {
            give_up(conn, policy, &row, expired.token, now)?;
            swept.failed = Some(SweptRow { id: row.id, event_type: row.event_type, lost_count });
            continue;
        }
        conn.prepare_cached(include_str!("sql/settle_release.sql"))?.execute(params![
            row.seq,
            expired.token,
            now,
            1
        ])?;
        swept.recovered += 1;
        swept.most_lost = swept.most_lost.max(lost_count);
        swept.event_types.extend(row.event_type.filter(|event_type| !swept.event_types.contains(event_type)));
    }
    Ok(Some(swept))
}

fn expired(conn: &Connection, policy: &QueuePolicy, now: i64) -> Result<Option<Expired>, Error> {
    Ok(conn
        .prepare_cached(include_str!("sql/expired_claim.sql"))?
        .query_row(params![policy.name, now], |row| {
            Ok(Expired {
                token: row.get(0)?,
                relay: row.get(1)?,
                task_count: row.get(2)?,
                seq_from: row.get(3)?,
                seq_to: row.get(4)?,
            })
        })
        .optional()?)
}

/// A row of the expired claim.
struct Lost {
    seq: i64,
    id: Uuid,
    event_type: Option<String>,
    lost_count: u32,
    max_retries: Option<u32>,
}

/// No index knows the token: ready rows are found by the claim's range, due ones by time, followers by key.
fn lost_rows(
    conn: &Connection,
    policy: &QueuePolicy,
    expired: &Expired,
    now: i64,
) -> Result<Vec<Lost>, Error> {
    let queue = &policy.name;
    let mut seqs: Vec<i64> = Vec::new();
    let left = |found: usize| expired.task_count.saturating_sub(found as u64);
    if let (Some(from), Some(to)) = (expired.seq_from, expired.seq_to) {
        let mut statement = conn.prepare_cached(include_str!("sql/lost_ready.sql"))?;
        for seq in statement.query_map(params![queue, from, to, expired.token, left(0)], |row| row.get(0))? {
            seqs.push(seq?);
        }
    }
    let limit = left(seqs.len());
    let mut statement = conn.prepare_cached(include_str!("sql/lost_due.sql"))?;
    for seq in statement.query_map(params![queue, now, expired.token, limit], |row| row.get(0))? {
        seqs.push(seq?);
    }
    let limit = left(seqs.len());
    let mut statement = conn.prepare_cached(include_str!("sql/lost_followers.sql"))?;
    for seq in statement.query_map(params![queue, expired.token, limit], |row| row.get(0))? {
        seqs.push(seq?);
    }
    seqs.sort_unstable();
    seqs.into_iter().map(|seq| lost_row(conn, seq)).collect()
}

fn lost_row(conn: &Connection, seq: i64) -> Result<Lost, Error> {
    let mut statement = conn.prepare_cached(include_str!("sql/lost_row.sql"))?;
    let mut found = statement.query([seq])?;
    let row = found.next()?.ok_or_else(|| Error::conflict(format!("row {seq} is gone")))?;
    Ok(Lost {
        seq,
        id: rows::id(row, 0)?,
        event_type: rows::optional_text(row, 1)?,
        lost_count: rows::count(row.get(2)?),
        max_retries: row.get::<_, Option<i64>>(3)?.map(rows::count),
    })
}

fn give_up(conn: &Connection, policy: &QueuePolicy, row: &Lost, token: i64, now: i64) -> Result<(), Error> {
    if policy.ordering == Ordering::Key {
        match policy.on_failed {
            OnFailed::Block => hold_key(conn, row.seq, MAX_RETRIES_EXCEEDED)?,
            OnFailed::Skip => {
                release_key(conn, row.seq)?;
            }
        }
    }
    conn.prepare_cached(include_str!("sql/settle_fail.sql"))?.execute(params![
        row.seq,
        token,
        now,
        MAX_RETRIES_EXCEEDED,
        0,
        1
    ])?;
    Ok(())
}

/// A PROCESSING row without a claim, as a reader saw it.
#[derive(Clone, Copy)]
pub(crate) struct Orphan {
    seq: i64,
    token: Option<i64>,
}

/// Reads all of the queue's unsettled rows.
pub(crate) fn orphans(conn: &Connection, policy: &QueuePolicy) -> Result<Vec<Orphan>, Error> {
    let untouched_since = rows::now(conn)?.saturating_sub(rows::milliseconds(policy.lease));
    let mut statement = conn.prepare_cached(include_str!("sql/orphans.sql"))?;
    let found = statement.query_map(params![policy.name, untouched_since], |row| {
        Ok(Orphan { seq: row.get(0)?, token: row.get(1)? })
    })?;
    Ok(found.collect::<Result<_, _>>()?)
}

/// Recovers those that are still orphans.
pub(crate) fn recover_orphans(
    conn: &Connection,
    policy: &QueuePolicy,
    orphans: &[Orphan],
) -> Result<u64, Error> {
    let now = rows::now(conn)?;
    let untouched_since = now.saturating_sub(rows::milliseconds(policy.lease));
    let mut statement = conn.prepare_cached(include_str!("sql/orphan_recover.sql"))?;
    let mut recovered = 0;
    for Orphan { seq, token } in orphans {
        recovered += statement.execute(params![seq, token, now, untouched_since])? as u64;
    }
    Ok(recovered)
}

/// Deletes at most `limit` rows that have outlived the queue's retention.
pub(crate) fn purge(conn: &Connection, policy: &QueuePolicy, limit: u32) -> Result<u64, Error> {
    let now = rows::now(conn)?;
    let before = now.saturating_sub(rows::milliseconds(policy.keep_for));
    let settled = conn.prepare_cached(include_str!("sql/purge_settled.sql"))?.execute(params![
        policy.name,
        before,
        limit
    ])?;
    let Some(failed_keep_for) = policy.failed_keep_for else { return Ok(settled as u64) };
    let before = now.saturating_sub(rows::milliseconds(failed_keep_for));
    let left = u64::from(limit).saturating_sub(settled as u64);
    let mut statement = conn.prepare_cached(include_str!("sql/purgeable_failed.sql"))?;
    let seqs: Vec<i64> = statement
        .query_map(params![policy.name, before, left], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let mut delete = conn.prepare_cached(include_str!("sql/purge_failed.sql"))?;
    for seq in &seqs {
        // Its key may wait for it.
        release_key(conn, *seq)?;
        delete.execute([seq, &before])?;
    }
    Ok((settled + seqs.len()) as u64)
}
