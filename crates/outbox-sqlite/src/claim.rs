use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox_store::{Claim, Claimed, Claimer, Event, OnFailed, Ordering, QueuePolicy, StoreError};
use rand::Rng;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::error::Error;
use crate::judge::{
    Block, Candidate, KeyState, Kind, Limits, Loose, Parked, Seen, Walk, Walked, Windows, judge, pick_loose,
    walk,
};
use crate::keys::{Key, Keys};
use crate::options::Synchronous;
use crate::rows;
use crate::store::Shared;
use crate::watch::Watch;
use crate::writer::data_version;

/// An idle claimer looks for commits of others this often,
const POLL: Duration = Duration::from_millis(2);

/// or this often where the system tells of writes to the WAL,
const WATCHED_POLL: Duration = Duration::from_millis(10);

/// and after such word more often for so long: the commit is visible a little later than its frames are written.
const ALERT: Duration = Duration::from_millis(10);
const ALERT_POLL: Duration = Duration::from_millis(1);

/// Claims rows of one queue.
pub(crate) struct SqliteClaimer {
    shared: Arc<Shared>,
    policy: Arc<QueuePolicy>,
    /// What the last claim saw; `None` before the first and after an error.
    seen: Option<LastSeen>,
    /// Opened with the first wait.
    watch: Option<Watch>,
}

/// Tells whether a claim might find more than the last one did.
struct LastSeen {
    /// Changes with commits of other connections.
    data_version: i64,
    /// Changes with own commits that made rows claimable.
    claimable: u64,
    /// Changes with own settles: waited for when all there is was in flight.
    settles: u64,
    held: bool,
}

impl SqliteClaimer {
    pub(crate) fn new(shared: Arc<Shared>, policy: Arc<QueuePolicy>) -> Self {
        Self { shared, policy, seen: None, watch: None }
    }

    fn may_find_more(&self) -> bool {
        let Some(seen) = &self.seen else { return true };
        if self.shared.signals.claimable() != seen.claimable {
            return true;
        }
        if seen.held && self.shared.signals.settles() != seen.settles {
            return true;
        }
        match self.shared.writer.data_version() {
            // The writer is at work; the next look will tell.
            None => false,
            // An error is the next claim's to report.
            Some(version) => version.map_or(true, |version| version != seen.data_version),
        }
    }
}

impl SqliteClaimer {
    /// Until there may be more to claim.
    async fn look(&self, watch: &mut Watch, at_most: Duration) {
        let end = Instant::now() + at_most;
        let mut alert_until = None;
        while !self.may_find_more() {
            let now = Instant::now();
            if now >= end {
                return;
            }
            let pause = match alert_until {
                Some(until) if now < until => ALERT_POLL,
                _ if watch.works() => WATCHED_POLL,
                _ => POLL,
            };
            tokio::select! {
                () = watch.written() => alert_until = Some(Instant::now() + ALERT),
                () = tokio::time::sleep(pause.min(end - now)) => {}
            }
        }
    }
}

#[async_trait]
impl Claimer for SqliteClaimer {
    async fn claim(&mut self) -> Result<Claimed, StoreError> {
        self.seen = None;
        let (claimable, settles) = (self.shared.signals.claimable(), self.shared.signals.settles());
        let (policy, relay) = (Arc::clone(&self.policy), self.shared.options.relay.clone());
        let sent_at = Instant::now();
        let work = move |slot: &mut crate::writer::Slot| {
            // Whatever the setting: nothing may be published whose own commit a power cut could undo.
            let (version, mut claimed) = slot.transaction(Synchronous::Full, |conn| {
                Ok((data_version(conn)?, claim(conn, &policy, &relay, sent_at)?))
            })?;
            if let Claimed::Rows(claim) = &mut claimed {
                claim.events.iter_mut().for_each(rows::classify);
            }
            Ok((version, claimed))
        };
        let (data_version, claimed) = self.shared.writer.run(work).await?;
        let held = matches!(claimed, Claimed::Held);
        self.seen = Some(LastSeen { data_version, claimable, settles, held });
        Ok(claimed)
    }

    async fn wait(&mut self, at_most: Duration) {
        let mut watch = self.watch.take().unwrap_or_else(|| Watch::new(&self.shared.options.path));
        self.look(&mut watch, at_most).await;
        self.watch = Some(watch);
    }
}

fn claim(conn: &Connection, policy: &QueuePolicy, relay: &str, sent_at: Instant) -> Result<Claimed, Error> {
    let paused = conn
        .prepare_cached(include_str!("sql/queue_is_paused.sql"))?
        .query_row([&policy.name], |row| row.get(0))
        .optional()?;
    if paused == Some(true) {
        return Ok(Claimed::Paused);
    }
    let now = rows::now(conn)?;
    let found = match policy.ordering {
        Ordering::Key => ordered(conn, policy, now)?,
        Ordering::None => unordered(conn, policy, now)?,
    };
    if found.picked.is_empty() {
        return nothing(conn, policy, now, &found);
    }
    let token = rand::rng().random_range(1..=i64::MAX);
    let claimed_at = rows::date(now);
    conn.prepare_cached(include_str!("sql/claim_insert.sql"))?.execute(params![
        token,
        policy.name,
        relay,
        now,
        rows::after(now, policy.lease),
        found.picked.len() as u64,
        found.ready_range.map(|(from, _)| from),
        found.ready_range.map(|(_, to)| to),
    ])?;
    let events = take(conn, token, now, &found.picked)?;
    Ok(Claimed::Rows(Claim { token, events, claimed_at, sent_at }))
}

/// What a claim has decided on.
struct Found {
    /// Seq, and whether it is what its key's block waits for; in the order of delivery.
    picked: Vec<(i64, bool)>,
    /// The first and the last seq among the ready rows picked.
    ready_range: Option<(i64, i64)>,
    /// Without a row picked: claiming again at once may bring one.
    again: bool,
    /// Without a row picked: all there is waits for what is in flight.
    held: bool,
}

fn nothing(conn: &Connection, policy: &QueuePolicy, now: i64, found: &Found) -> Result<Claimed, Error> {
    if found.again {
        return Ok(Claimed::Busy);
    }
    if found.held {
        return Ok(Claimed::Held);
    }
    let next_due: Option<i64> = conn
        .prepare_cached(include_str!("sql/next_due.sql"))?
        .query_row(params![policy.name, now], |row| row.get(0))
        .optional()?;
    let next_due = next_due.map(|due| Duration::from_millis(due.saturating_sub(now).max(0).cast_unsigned()));
    Ok(Claimed::Empty { next_due })
}

fn take(conn: &Connection, token: i64, now: i64, picked: &[(i64, bool)]) -> Result<Vec<Event>, Error> {
    let mut read = conn.prepare_cached(include_str!("sql/event.sql"))?;
    let mut mark = conn.prepare_cached(include_str!("sql/claim_row.sql"))?;
    let mut events = Vec::with_capacity(picked.len());
    for &(seq, is_hold) in picked {
        let mut found = read.query([seq])?;
        let row = found.next()?.ok_or_else(|| Error::conflict(format!("row {seq} is gone")))?;
        events.push(rows::event(row, seq, is_hold)?);
        drop(found);
        if mark.execute([seq, token, now])? != 1 {
            return Err(Error::conflict(format!("row {seq} is not PENDING any more")));
        }
    }
    Ok(events)
}

fn limits(policy: &QueuePolicy) -> Limits {
    Limits { rows: u64::from(policy.batch.max(1)), bytes: policy.batch_bytes }
}

fn ordered(conn: &Connection, policy: &QueuePolicy, now: i64) -> Result<Found, Error> {
    let limits = limits(policy);
    let in_claims: u64 = conn
        .prepare_cached(include_str!("sql/rows_in_claims.sql"))?
        .query_row([&policy.name], |row| row.get(0))?;
    let mut windows = Windows::first(limits.rows, in_claims);
    loop {
        let pass = Pass::new(conn, policy, now, windows)?;
        let ready_end = if pass.ready < windows.rows { i64::MAX } else { pass.last_ready };
        let judged = judge(&pass.candidates, &pass.states, ready_end, limits, windows.parked);
        let seen =
            Seen { ready: pass.ready, due: pass.due, more_followers: pass.more_followers, free: judged.free };
        if let Some(larger) = windows.grown(limits.rows, seen) {
            windows = larger;
            continue;
        }
        pass.park(&judged.park)?;
        let rows = || judged.pick.iter().map(|&index| &pass.candidates[index]);
        let ready = || rows().filter(|row| row.kind == Kind::Ready).map(|row| row.seq);
        let in_flight = judged.in_flight || pass.walked_any;
        let is_hold =
            |row: &Candidate| pass.states[row.key].block.is_some_and(|block| block.hold_after == row.seq);
        return Ok(Found {
            picked: rows().map(|row| (row.seq, is_hold(row))).collect(),
            ready_range: ready().min().zip(ready().max()),
            // Released keys that had nothing to give may have taken the place of others: the next claim gets further.
            again: !judged.park.is_empty() || pass.cleared,
            held: in_flight,
        });
    }
}

/// One pass over the windows: everything that a claim is judged on.
struct Pass<'c> {
    conn: &'c Connection,
    policy: &'c QueuePolicy,
    now: i64,
    windows: Windows,
    keys: Keys,
    /// By key.
    states: Vec<KeyState>,
    /// In seq order.
    candidates: Vec<Candidate>,
    ready: u64,
    last_ready: i64,
    due: u64,
    more_followers: bool,
    /// A released key has rows in flight or followers that may go.
    walked_any: bool,
    /// A released key turned out to have no follower that may go.
    cleared: bool,
}

impl<'c> Pass<'c> {
    fn new(conn: &'c Connection, policy: &'c QueuePolicy, now: i64, windows: Windows) -> Result<Self, Error> {
        let mut pass = Self {
            conn,
            policy,
            now,
            windows,
            keys: Keys::default(),
            states: Vec::new(),
            candidates: Vec::new(),
            ready: 0,
            last_ready: i64::MAX,
            due: 0,
            more_followers: false,
            walked_any: false,
            cleared: false,
        };
        let blocks: bool = conn
            .prepare_cached(include_str!("sql/queue_has_blocks.sql"))?
            .query_row([&policy.name], |row| row.get(0))?;
        if blocks {
            pass.walk_released_keys()?;
        }
        pass.read_ready()?;
        pass.read_due()?;
        pass.candidates.sort_unstable_by_key(|row| row.seq);
        pass.states.resize(pass.keys.len(), KeyState::default());
        if blocks {
            pass.read_blocks()?;
        }
        Ok(pass)
    }

    fn read_ready(&mut self) -> Result<(), Error> {
        let mut statement = self.conn.prepare_cached(include_str!("sql/ready.sql"))?;
        let mut found = statement.query(params![self.policy.name, self.windows.rows])?;
        while let Some(row) = found.next()? {
            let candidate = candidate(row, Kind::Ready, &mut self.keys)?;
            self.ready += 1;
            self.last_ready = candidate.seq;
            self.candidates.push(candidate);
        }
        Ok(())
    }

    fn read_due(&mut self) -> Result<(), Error> {
        let mut statement = self.conn.prepare_cached(include_str!("sql/due.sql"))?;
        let mut found = statement.query(params![self.policy.name, self.windows.rows, self.now])?;
        while let Some(row) = found.next()? {
            self.candidates.push(candidate(row, Kind::Due, &mut self.keys)?);
            self.due += 1;
        }
        Ok(())
    }

    fn read_blocks(&mut self) -> Result<(), Error> {
        let mut statement = self.conn.prepare_cached(include_str!("sql/block_get.sql"))?;
        for (index, state) in self.states.iter_mut().enumerate() {
            let key = self.keys.get(index);
            state.block = statement
                .query_row(params![self.policy.name, key.aggregate_type, key.aggregate_id], |row| {
                    Ok(Block { hold_after: row.get(0)?, released: row.get(1)?, follow_from: row.get(2)? })
                })
                .optional()?;
        }
        Ok(())
    }

    /// Lets followers of released keys out, as far as the windows allow. Keys that they leave no room for are left
    /// without [`Walked`], which counts as busy.
    fn walk_released_keys(&mut self) -> Result<(), Error> {
        let mut room = 4 * self.windows.followers;
        for (index, follow_from) in self.released_keys()? {
            if room == 0 {
                break;
            }
            let parked = self.parked(index, follow_from, room.min(self.windows.followers))?;
            room -= parked.len() as u64;
            self.walk_key(index, follow_from, &parked)?;
        }
        Ok(())
    }

    fn walk_key(&mut self, index: usize, follow_from: i64, parked: &[Parked]) -> Result<(), Error> {
        let failed = match self.policy.on_failed {
            OnFailed::Block => self.first_failed(index, follow_from)?,
            OnFailed::Skip => None,
        };
        match walk(parked, failed) {
            Walk::Unblock => {
                self.cleared = true;
                self.block(include_str!("sql/block_delete.sql"), index)?;
            }
            Walk::Hold(head) => {
                self.cleared = true;
                self.block_at(include_str!("sql/block_hold_at.sql"), index, head)?;
            }
            Walk::Busy => {
                let waits = self.follower_waits(index, follow_from)?;
                self.walked(index, Walked { busy: true, waits });
            }
            Walk::Follow(followers) => {
                self.walked(index, Walked { busy: false, waits: true });
                self.follow(index, &parked[..followers]);
                // Only when it lags a batch: it is a write in each claim otherwise.
                if parked[0].seq - follow_from >= i64::from(self.policy.batch) {
                    self.block_at(include_str!("sql/block_follow_from.sql"), index, parked[0].seq)?;
                }
            }
        }
        Ok(())
    }

    fn walked(&mut self, index: usize, walked: Walked) {
        self.states.resize(self.keys.len(), KeyState::default());
        self.states[index].walked = Some(walked);
        self.walked_any = true;
    }

    fn follow(&mut self, index: usize, followers: &[Parked]) {
        let most = self.windows.followers;
        // Only followers are candidates yet.
        let room = most - self.candidates.len() as u64;
        let taken = usize::try_from(room).unwrap_or(usize::MAX).min(followers.len());
        self.candidates.extend(followers[..taken].iter().map(|row| Candidate {
            seq: row.seq,
            key: index,
            kind: Kind::Follower,
            in_flight: row.in_flight,
            lost_count: row.lost_count,
            bytes: row.bytes,
        }));
        self.more_followers |= followers.len() as u64 == most || self.candidates.len() as u64 == most;
    }

    fn released_keys(&mut self) -> Result<Vec<(usize, i64)>, Error> {
        let mut statement = self.conn.prepare_cached(include_str!("sql/released_keys.sql"))?;
        let mut found = statement.query(params![self.policy.name, self.policy.batch.max(1)])?;
        let mut keys = Vec::new();
        while let Some(row) = found.next()? {
            keys.push((self.keys.index(rows::bytes(row, 0)?, rows::bytes(row, 1)?), row.get(2)?));
        }
        Ok(keys)
    }

    fn parked(&self, index: usize, follow_from: i64, limit: u64) -> Result<Vec<Parked>, Error> {
        let Key { aggregate_type, aggregate_id } = self.keys.get(index);
        let mut statement = self.conn.prepare_cached(include_str!("sql/walk.sql"))?;
        let found = statement.query_map(
            params![self.policy.name, aggregate_type, aggregate_id, follow_from, limit],
            |row| {
                Ok(Parked {
                    seq: row.get(0)?,
                    in_flight: row.get(1)?,
                    retried: row.get(2)?,
                    lost_count: rows::count(row.get(3)?),
                    bytes: row.get(4)?,
                })
            },
        )?;
        Ok(found.collect::<Result<_, _>>()?)
    }

    fn first_failed(&self, index: usize, follow_from: i64) -> Result<Option<i64>, Error> {
        let Key { aggregate_type, aggregate_id } = self.keys.get(index);
        Ok(self
            .conn
            .prepare_cached(include_str!("sql/walk_failed.sql"))?
            .query_row(params![self.policy.name, aggregate_type, aggregate_id, follow_from], |row| row.get(0))
            .optional()?)
    }

    fn follower_waits(&self, index: usize, follow_from: i64) -> Result<bool, Error> {
        let Key { aggregate_type, aggregate_id } = self.keys.get(index);
        Ok(self
            .conn
            .prepare_cached(include_str!("sql/walk_waits.sql"))?
            .query_row(params![self.policy.name, aggregate_type, aggregate_id, follow_from], |row| {
                row.get(0)
            })?)
    }

    fn block(&self, statement: &str, index: usize) -> Result<(), Error> {
        let Key { aggregate_type, aggregate_id } = self.keys.get(index);
        self.conn.prepare_cached(statement)?.execute(params![
            self.policy.name,
            aggregate_type,
            aggregate_id
        ])?;
        Ok(())
    }

    fn block_at(&self, statement: &str, index: usize, seq: i64) -> Result<(), Error> {
        let Key { aggregate_type, aggregate_id } = self.keys.get(index);
        self.conn.prepare_cached(statement)?.execute(params![
            self.policy.name,
            aggregate_type,
            aggregate_id,
            seq
        ])?;
        Ok(())
    }

    fn park(&self, park: &[usize]) -> Result<(), Error> {
        let mut statement = self.conn.prepare_cached(include_str!("sql/park.sql"))?;
        let mut lowered = HashSet::new();
        for row in park.iter().map(|&index| &self.candidates[index]) {
            statement.execute([row.seq, self.now])?;
            // A delayed row may lie below the place where the walk over its key has arrived. In seq order the first
            // of a key is the lowest.
            let follow_from = self.states[row.key].block.map_or(i64::MIN, |block| block.follow_from);
            if row.seq < follow_from && lowered.insert(row.key) {
                self.block_at(include_str!("sql/block_lower.sql"), row.key, row.seq)?;
            }
        }
        Ok(())
    }
}

fn candidate(row: &Row<'_>, kind: Kind, keys: &mut Keys) -> Result<Candidate, Error> {
    Ok(Candidate {
        seq: row.get(0)?,
        key: keys.index(rows::bytes(row, 1)?, rows::bytes(row, 2)?),
        kind,
        in_flight: row.get(3)?,
        lost_count: rows::count(row.get(4)?),
        bytes: row.get(5)?,
    })
}

fn unordered(conn: &Connection, policy: &QueuePolicy, now: i64) -> Result<Found, Error> {
    let limits = limits(policy);
    let blocks: bool = conn
        .prepare_cached(include_str!("sql/queue_has_blocks.sql"))?
        .query_row([&policy.name], |row| row.get(0))?;
    if blocks {
        conn.prepare_cached(include_str!("sql/unordered_unpark.sql"))?
            .execute(params![policy.name, limits.rows])?;
        conn.prepare_cached(include_str!("sql/unordered_unblock.sql"))?.execute([&policy.name])?;
    }
    let mut found = Vec::new();
    for statement in [include_str!("sql/unordered_urgent.sql"), include_str!("sql/unordered_ready.sql")] {
        let mut statement = conn.prepare_cached(statement)?;
        for row in statement.query_map(params![policy.name, limits.rows], loose)? {
            found.push(row?);
        }
    }
    let ready_seqs: HashSet<i64> = found.iter().map(|row| row.seq).collect();
    let mut statement = conn.prepare_cached(include_str!("sql/unordered_due.sql"))?;
    for row in statement.query_map(params![policy.name, limits.rows, now], loose)? {
        found.push(row?);
    }
    let picked = pick_loose(found, limits);
    let ready = || picked.iter().copied().filter(|seq| ready_seqs.contains(seq));
    let held = picked.is_empty()
        && conn
            .prepare_cached(include_str!("sql/in_flight.sql"))?
            .query_row([&policy.name], |row| row.get(0))?;
    Ok(Found {
        ready_range: ready().min().zip(ready().max()),
        picked: picked.iter().map(|&seq| (seq, false)).collect(),
        again: false,
        held,
    })
}

fn loose(row: &Row<'_>) -> rusqlite::Result<Loose> {
    Ok(Loose {
        seq: row.get(0)?,
        priority: row.get(1)?,
        lost_count: rows::count(row.get(2)?),
        bytes: row.get(3)?,
    })
}
