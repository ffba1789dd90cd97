//! The same on [`rusqlite`] transactions and connections (feature `rusqlite`). Nothing here is async.
//!
//! ```
//! # fn example(connection: &mut rusqlite::Connection) -> Result<(), Box<dyn std::error::Error>> {
//! use processed_events::rusqlite::once;
//! use rusqlite::TransactionBehavior;
//!
//! let event_id = "01980000-0000-7000-8000-000000000001";
//! let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
//! if once(&tx, event_id)?.is_first() {
//!     tx.execute("UPDATE balances SET cents = cents + 4200 WHERE account = 'a'", [])?;
//! }
//! tx.commit()?;
//! # Ok(())
//! # }
//! ```

use std::collections::HashSet;
use std::time::Duration;

use rusqlite::{Connection, params, params_from_iter};

use crate::guard::checked_key;
use crate::mark::{Batch, checked, checked_purge};
use crate::statements::sqlite as sql;
use crate::table::{Table, named_table};
use crate::{Arrival, Engine, EventId, Outcome, ProcessedError};

/// A consumer's table of the events it has processed, as [`crate::ProcessedEvents`] is for sqlx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessedEvents {
    table: Table,
}

named_table!(ProcessedEvents, "processed_events", PROCESSED_EVENTS);

impl ProcessedEvents {
    /// Makes the table, unless it is there. Several consumers may do so at once.
    ///
    /// # Errors
    /// The database's.
    pub fn migrate(&self, connection: &Connection) -> Result<(), ProcessedError> {
        Ok(connection.execute_batch(&self.table.migration(Engine::Sqlite))?)
    }

    /// Marks one event; see [`once`].
    ///
    /// # Errors
    /// As [`once`].
    pub fn once(&self, tx: &Connection, event_id: impl EventId) -> Result<Outcome, ProcessedError> {
        let id = checked(&event_id)?;
        let inserted = tx.prepare_cached(&self.table.fill(sql::ONCE))?.execute([&*id])?;
        Ok(if inserted == 1 { Outcome::First } else { Outcome::Duplicate })
    }

    /// Marks many events; see [`first_of`].
    ///
    /// # Errors
    /// As [`first_of`].
    pub fn first_of<I: EventId>(
        &self,
        tx: &Connection,
        event_ids: impl IntoIterator<Item = I>,
    ) -> Result<Vec<Outcome>, ProcessedError> {
        let batch = Batch::new(event_ids)?;
        let mut inserted = HashSet::new();
        for ids in batch.chunks() {
            let mut statement = tx.prepare(&self.table.fill(&sql::first_of(ids.len())))?;
            for id in statement.query_map(params_from_iter(ids), |row| row.get(0))? {
                inserted.insert(id?);
            }
        }
        Ok(batch.outcomes(inserted))
    }

    /// Forgets events that were processed longer ago than `older_than`, in statements of at most `batch` rows; see
    /// `ProcessedEvents::purge` at the crate's root. Give it a connection without a transaction.
    ///
    /// # Errors
    /// The database's; what was deleted before stays so. [`ProcessedError::Invalid`] and [`ProcessedError::TooLarge`]
    /// for a batch of 0 or more than [`MAX_PURGE_BATCH`](crate::MAX_PURGE_BATCH) rows and a horizon beyond
    /// [`MAX_HORIZON`](crate::MAX_HORIZON).
    pub fn purge(
        &self,
        connection: &Connection,
        older_than: Duration,
        batch: u32,
    ) -> Result<u64, ProcessedError> {
        checked_purge(older_than, batch)?;
        let mut statement = connection.prepare(&self.table.fill(sql::PURGE))?;
        let mut purged = 0;
        loop {
            // Within i64: the horizon is limited.
            let deleted = statement.execute(params![older_than.as_millis() as i64, batch])? as u64;
            purged += deleted;
            if deleted < u64::from(batch) {
                return Ok(purged);
            }
        }
    }
}

/// A consumer's table of the last seq of each aggregate, as [`crate::SeqGuard`] is for sqlx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeqGuard {
    table: Table,
}

named_table!(SeqGuard, "processed_seqs", PROCESSED_SEQS);

impl SeqGuard {
    /// Makes the table, unless it is there. Several consumers may do so at once.
    ///
    /// # Errors
    /// The database's.
    pub fn migrate(&self, connection: &Connection) -> Result<(), ProcessedError> {
        Ok(connection.execute_batch(&self.table.migration(Engine::Sqlite))?)
    }

    /// Makes `seq` the aggregate's last, in the transaction at hand, if it is higher than the last one; see
    /// `SeqGuard::advance` at the crate's root.
    ///
    /// # Errors
    /// As [`once`]; [`ProcessedError::TooLarge`] when type and id have more than
    /// [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES) together, [`ProcessedError::Invalid`] when there is NUL in them.
    pub fn advance(
        &self,
        tx: &Connection,
        aggregate_type: &str,
        aggregate_id: &str,
        seq: i64,
    ) -> Result<Arrival, ProcessedError> {
        checked_key(aggregate_type, aggregate_id)?;
        let mut advance = tx.prepare_cached(&self.table.fill(sql::ADVANCE))?;
        if advance.execute(params![aggregate_type, aggregate_id, seq])? == 1 {
            return Ok(Arrival::InOrder);
        }
        let mut last_seen = tx.prepare_cached(&self.table.fill(sql::LAST_SEEN))?;
        let last = last_seen.query_row(params![aggregate_type, aggregate_id], |row| row.get(0))?;
        Ok(Arrival::OutOfOrder { last })
    }
}

/// Marks an event as processed in the table `processed_events`, in the transaction at hand, and says whether it is the
/// first to do so. On [`Outcome::First`] let the event have its effect in the same transaction, and commit.
///
/// Begin with `TransactionBehavior::Immediate`: then a transaction that has marked the event and is still open is waited
/// for at the beginning, as long as `busy_timeout` allows.
///
/// # Errors
/// [`ProcessedError::TryAgain`] when the database stays locked, or has changed since a transaction begun without
/// Immediate read it: roll back and try it again.
///
/// [`ProcessedError::Invalid`] and [`ProcessedError::TooLarge`] for an id that is empty, has NUL in it or more than
/// [`MAX_EVENT_ID_BYTES`](crate::MAX_EVENT_ID_BYTES); otherwise the database's error.
pub fn once(tx: &Connection, event_id: impl EventId) -> Result<Outcome, ProcessedError> {
    ProcessedEvents::default().once(tx, event_id)
}

/// Marks many events in the table `processed_events`, in the transaction at hand, in one statement for each 1,000, and
/// answers in the order of the ids. An id that is there twice is First, then Duplicate.
///
/// # Errors
/// As [`once`]. All ids are checked before the first is inserted.
pub fn first_of<I: EventId>(
    tx: &Connection,
    event_ids: impl IntoIterator<Item = I>,
) -> Result<Vec<Outcome>, ProcessedError> {
    ProcessedEvents::default().first_of(tx, event_ids)
}
