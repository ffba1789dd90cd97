use outbox_store::{OnFailed, Ordering, Published, QueuePolicy, Settled, Verdict};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::Error;
use crate::rows;

/// What a settle did, and whether rows became claimable by it.
pub(crate) struct Outcome {
    pub(crate) settled: Settled,
    pub(crate) claimable: bool,
}

/// One claimed row and what is to become of it.
pub(crate) struct Decided {
    pub(crate) seq: i64,
    pub(crate) verdict: Verdict,
}

pub(crate) fn settle(
    conn: &Connection,
    policy: &QueuePolicy,
    token: i64,
    decided: &[Decided],
) -> Result<Outcome, Error> {
    let claimed: Option<u64> = conn
        .prepare_cached(include_str!("sql/claim_delete.sql"))?
        .query_row([token], |row| row.get(0))
        .optional()?;
    let Some(claimed) = claimed else {
        return Ok(Outcome { settled: Settled::LeaseLost, claimable: false });
    };
    if claimed != decided.len() as u64 {
        return Err(Error::failed(format!("a claim of {claimed} rows was given {} verdicts", decided.len())));
    }
    let released = match policy.ordering {
        Ordering::Key => settle_blocks(conn, policy, decided)?,
        Ordering::None => false,
    };
    settle_rows(conn, policy, token, decided)?;
    let all_published = decided.iter().all(|row| matches!(row.verdict, Verdict::Published { .. }));
    Ok(Outcome { settled: Settled::Done, claimable: released || !all_published })
}

/// Releases the keys whose head is done, and holds those of the rows that did not get through. True when a key was
/// released.
///
/// It looks at every row whose queue has a block at all, not only at those whose claim saw one on their key: under
/// the write lock that is cheap, and a block that came meanwhile is not missed.
fn settle_blocks(conn: &Connection, policy: &QueuePolicy, decided: &[Decided]) -> Result<bool, Error> {
    let blocks: bool = conn
        .prepare_cached(include_str!("sql/queue_has_blocks.sql"))?
        .query_row([&policy.name], |row| row.get(0))?;
    let mut released = false;
    if blocks {
        for row in decided.iter().filter(|row| is_done(policy, &row.verdict)) {
            released |= release_key(conn, row.seq)?;
        }
    }
    // After the releases: a head that is done makes its key a released one, which a hold above it leaves alone.
    for row in decided {
        if let Some(reason) = holds_key(policy, &row.verdict) {
            hold_key(conn, row.seq, reason)?;
        }
    }
    Ok(released)
}

/// Nothing waits for the row any more.
fn is_done(policy: &QueuePolicy, verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Published { .. } => true,
        Verdict::Failed { .. } => policy.on_failed == OnFailed::Skip,
        Verdict::Retry { .. } | Verdict::Hold { .. } | Verdict::Release => false,
    }
}

/// Why the rows of its key behind the row must wait, if they must.
fn holds_key<'v>(policy: &QueuePolicy, verdict: &'v Verdict) -> Option<&'v str> {
    match verdict {
        Verdict::Retry { error, .. } | Verdict::Hold { error, .. } => Some(error),
        Verdict::Failed { error } if policy.on_failed == OnFailed::Block => Some(error),
        Verdict::Published { .. } | Verdict::Failed { .. } | Verdict::Release => None,
    }
}

/// Lets the followers of a key out whose hold is this row. Must come before the row is deleted.
pub(crate) fn release_key(conn: &Connection, seq: i64) -> Result<bool, Error> {
    Ok(conn.prepare_cached(include_str!("sql/block_release.sql"))?.execute([seq])? > 0)
}

/// Makes the rows of the row's key behind it wait for it.
pub(crate) fn hold_key(conn: &Connection, seq: i64, reason: &str) -> Result<(), Error> {
    conn.prepare_cached(include_str!("sql/block_hold.sql"))?.execute(params![seq, reason])?;
    Ok(())
}

fn settle_rows(
    conn: &Connection,
    policy: &QueuePolicy,
    token: i64,
    decided: &[Decided],
) -> Result<(), Error> {
    let now = rows::now(conn)?;
    let mut keep = conn.prepare_cached(include_str!("sql/settle_keep.sql"))?;
    let mut delete = conn.prepare_cached(include_str!("sql/settle_delete.sql"))?;
    let mut retry = conn.prepare_cached(include_str!("sql/settle_retry.sql"))?;
    let mut fail = conn.prepare_cached(include_str!("sql/settle_fail.sql"))?;
    let mut release = conn.prepare_cached(include_str!("sql/settle_release.sql"))?;
    for Decided { seq, verdict } in decided {
        let changed = match verdict {
            Verdict::Published { receipt } => match policy.published {
                Published::Keep => keep.execute(params![seq, token, now, receipt])?,
                Published::Delete => delete.execute([seq, &token])?,
            },
            Verdict::Retry { after, error } => {
                retry.execute(params![seq, token, now, rows::after(now, *after), error, 1])?
            }
            Verdict::Hold { after, error } => {
                retry.execute(params![seq, token, now, rows::after(now, *after), error, 0])?
            }
            Verdict::Failed { error } => fail.execute(params![seq, token, now, error, 1, 0])?,
            Verdict::Release => release.execute(params![seq, token, now, 0])?,
        };
        if changed != 1 {
            // Nothing but hand-written SQL takes a row out of a claim that lives.
            return Err(Error::failed(format!(
                "row {seq} is not in claim {token} any more: the settle was undone"
            )));
        }
    }
    Ok(())
}
