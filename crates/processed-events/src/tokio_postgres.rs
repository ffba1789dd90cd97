//! The same on [`tokio_postgres`] transactions and clients (feature `tokio-postgres`).
//!
//! ```
//! # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use processed_events::tokio_postgres::once;
//!
//! let event_id = "01980000-0000-7000-8000-000000000001";
//! let tx = client.transaction().await?;
//! if once(&tx, event_id).await?.is_first() {
//!     tx.execute("UPDATE balances SET cents = cents + 4200 WHERE account = 'a'", &[]).await?;
//! }
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```

use std::collections::HashSet;
use std::time::Duration;

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::guard::checked_key;
use crate::mark::{Batch, checked, checked_purge};
use crate::statements::postgres as sql;
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
    pub async fn migrate(&self, client: &(impl GenericClient + Sync)) -> Result<(), ProcessedError> {
        migrate(client, &self.table).await
    }

    /// Marks one event; see [`once`].
    ///
    /// # Errors
    /// As [`once`].
    pub async fn once(
        &self,
        tx: &(impl GenericClient + Sync),
        event_id: impl EventId,
    ) -> Result<Outcome, ProcessedError> {
        let id = checked(&event_id)?;
        let inserted = tx.execute_typed(&self.table.fill(sql::ONCE), &[(&id, Type::TEXT)]).await?;
        Ok(if inserted == 1 { Outcome::First } else { Outcome::Duplicate })
    }

    /// Marks many events; see [`first_of`].
    ///
    /// # Errors
    /// As [`first_of`].
    pub async fn first_of<I: EventId>(
        &self,
        tx: &(impl GenericClient + Sync),
        event_ids: impl IntoIterator<Item = I>,
    ) -> Result<Vec<Outcome>, ProcessedError> {
        let batch = Batch::new(event_ids)?;
        let statement = self.table.fill(sql::FIRST_OF);
        let mut inserted = HashSet::new();
        for ids in batch.chunks() {
            for row in tx.query_typed(&statement, &[(&ids, Type::TEXT_ARRAY)]).await? {
                inserted.insert(row.try_get(0)?);
            }
        }
        Ok(batch.outcomes(inserted))
    }

    /// Forgets events that were processed longer ago than `older_than`, in statements of at most `batch` rows; see
    /// `ProcessedEvents::purge` at the crate's root. Give it a client, not a transaction.
    ///
    /// # Errors
    /// The database's; what was deleted before stays so. [`ProcessedError::Invalid`] and [`ProcessedError::TooLarge`]
    /// for a batch of 0 or more than [`MAX_PURGE_BATCH`](crate::MAX_PURGE_BATCH) rows and a horizon beyond
    /// [`MAX_HORIZON`](crate::MAX_HORIZON).
    pub async fn purge(
        &self,
        client: &(impl GenericClient + Sync),
        older_than: Duration,
        batch: u32,
    ) -> Result<u64, ProcessedError> {
        checked_purge(older_than, batch)?;
        let statement = self.table.fill(sql::PURGE);
        // Within i64: the horizon is limited.
        let older_than_us = older_than.as_micros() as i64;
        let mut purged = 0;
        loop {
            let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
                [(&older_than_us, Type::INT8), (&i64::from(batch), Type::INT8)];
            let deleted = client.execute_typed(&statement, &parameters).await?;
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
    pub async fn migrate(&self, client: &(impl GenericClient + Sync)) -> Result<(), ProcessedError> {
        migrate(client, &self.table).await
    }

    /// Makes `seq` the aggregate's last, in the transaction at hand, if it is higher than the last one; see
    /// `SeqGuard::advance` at the crate's root.
    ///
    /// # Errors
    /// As [`once`]; [`ProcessedError::TooLarge`] when type and id have more than
    /// [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES) together, [`ProcessedError::Invalid`] when there is NUL in them.
    pub async fn advance(
        &self,
        tx: &(impl GenericClient + Sync),
        aggregate_type: &str,
        aggregate_id: &str,
        seq: i64,
    ) -> Result<Arrival, ProcessedError> {
        checked_key(aggregate_type, aggregate_id)?;
        let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
            [(&aggregate_type, Type::TEXT), (&aggregate_id, Type::TEXT), (&seq, Type::INT8)];
        if tx.execute_typed(&self.table.fill(sql::ADVANCE), &parameters).await? == 1 {
            return Ok(Arrival::InOrder);
        }
        let row = tx.query_typed_one(&self.table.fill(sql::LAST_SEEN), &parameters[..2]).await?;
        Ok(Arrival::OutOfOrder { last: row.try_get(0)? })
    }
}

async fn migrate(client: &(impl GenericClient + Sync), table: &Table) -> Result<(), ProcessedError> {
    // One string, hence one transaction: the lock is held until all of it is done.
    let locked = format!("{}{}", sql::LOCK, table.migration(Engine::Postgres));
    Ok(client.batch_execute(&locked).await?)
}

/// Marks an event as processed in the table `processed_events`, in the transaction at hand, and says whether it is the
/// first to do so. On [`Outcome::First`] let the event have its effect in the same transaction, and commit.
///
/// While another transaction that has marked the event is open, this waits for its end: if it commits the answer is
/// [`Outcome::Duplicate`], if it rolls back [`Outcome::First`].
///
/// # Errors
/// [`ProcessedError::TryAgain`] when the answer cannot be had in this transaction: roll back and try it again. That is
/// so under REPEATABLE READ and SERIALIZABLE, when the event was marked by a transaction that committed after this one
/// began; under READ COMMITTED on a deadlock with a transaction that marks the same events in another order.
///
/// [`ProcessedError::Invalid`] and [`ProcessedError::TooLarge`] for an id that is empty, has NUL in it or more than
/// [`MAX_EVENT_ID_BYTES`](crate::MAX_EVENT_ID_BYTES); otherwise the database's error.
pub async fn once(
    tx: &(impl GenericClient + Sync),
    event_id: impl EventId,
) -> Result<Outcome, ProcessedError> {
    ProcessedEvents::default().once(tx, event_id).await
}

/// Marks many events in the table `processed_events`, in the transaction at hand, in one statement for each 1,000, and
/// answers in the order of the ids. An id that is there twice is First, then Duplicate.
///
/// The ids are inserted in sorted order, so two transactions with one batch each cannot deadlock, whatever order their
/// events came in.
///
/// # Errors
/// As [`once`]. All ids are checked before the first is inserted.
pub async fn first_of<I: EventId>(
    tx: &(impl GenericClient + Sync),
    event_ids: impl IntoIterator<Item = I>,
) -> Result<Vec<Outcome>, ProcessedError> {
    ProcessedEvents::default().first_of(tx, event_ids).await
}
