use crate::table::{Table, named_table};

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use std::{collections::HashSet, time::Duration};

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::{
    Connection, Engine, EventId, Outcome, ProcessedError,
    connection::sealed::Handle,
    mark::{Batch, checked, checked_purge},
};

/// A consumer's table of the events it has processed. One table a consumer: two that share one would each take the
/// other's events for its own duplicates.
///
/// The default is the table `processed_events`, which is also what the functions [`once`](crate::once()) and
/// [`first_of`](crate::first_of()) use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessedEvents {
    table: Table,
}

named_table!(ProcessedEvents, "processed_events", PROCESSED_EVENTS);

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl ProcessedEvents {
    /// Makes the table, unless it is there. Several consumers may do so at once.
    ///
    /// # Errors
    /// The database's.
    pub async fn migrate<C: Connection + ?Sized>(&self, connection: &mut C) -> Result<(), ProcessedError> {
        match connection.handle() {
            #[cfg(feature = "postgres")]
            Handle::Postgres(connection) => {
                crate::postgres::migrate(connection, self.table.migration(Engine::Postgres)).await?;
            }
            #[cfg(feature = "sqlite")]
            Handle::Sqlite(connection) => {
                crate::sqlite::migrate(connection, self.table.migration(Engine::Sqlite)).await?;
            }
        }
        Ok(())
    }

    /// Marks one event; see [`once`](crate::once()).
    ///
    /// # Errors
    /// As [`once`](crate::once()).
    pub async fn once<C: Connection + ?Sized>(
        &self,
        tx: &mut C,
        event_id: impl EventId,
    ) -> Result<Outcome, ProcessedError> {
        let id = checked(&event_id)?;
        let inserted = match tx.handle() {
            #[cfg(feature = "postgres")]
            Handle::Postgres(connection) => crate::postgres::once(connection, &self.table, &id).await?,
            #[cfg(feature = "sqlite")]
            Handle::Sqlite(connection) => crate::sqlite::once(connection, &self.table, &id).await?,
        };
        Ok(if inserted { Outcome::First } else { Outcome::Duplicate })
    }

    /// Marks many events; see [`first_of`](crate::first_of()).
    ///
    /// # Errors
    /// As [`first_of`](crate::first_of()).
    pub async fn first_of<C: Connection + ?Sized, I: EventId>(
        &self,
        tx: &mut C,
        event_ids: impl IntoIterator<Item = I>,
    ) -> Result<Vec<Outcome>, ProcessedError> {
        let batch = Batch::new(event_ids)?;
        let mut inserted = HashSet::new();
        for ids in batch.chunks() {
            match tx.handle() {
                #[cfg(feature = "postgres")]
                Handle::Postgres(connection) => {
                    crate::postgres::first_of(connection, &self.table, ids, &mut inserted).await?;
                }
                #[cfg(feature = "sqlite")]
                Handle::Sqlite(connection) => {
                    crate::sqlite::first_of(connection, &self.table, ids, &mut inserted).await?;
                }
            }
        }
        Ok(batch.outcomes(inserted))
    }

    /// Forgets events that were processed longer ago than `older_than` by the database's clock, in statements of at most
    /// `batch` rows, until none is left; answers how many there were.
    ///
    /// An event that is delivered again after its mark is gone has its effect a second time: `older_than` must exceed
    /// the longest time in which that can happen. `docs/consuming.md` says how to find it.
    ///
    /// Give it a connection, not a transaction: then each batch commits by itself. Several consumers may purge at once.
    ///
    /// # Errors
    /// The database's; what was deleted before stays so. [`ProcessedError::Invalid`] and [`ProcessedError::TooLarge`]
    /// for a batch of 0 or more than [`MAX_PURGE_BATCH`](crate::MAX_PURGE_BATCH) rows and a horizon beyond
    /// [`MAX_HORIZON`](crate::MAX_HORIZON).
    pub async fn purge<C: Connection + ?Sized>(
        &self,
        connection: &mut C,
        older_than: Duration,
        batch: u32,
    ) -> Result<u64, ProcessedError> {
        checked_purge(older_than, batch)?;
        let mut purged = 0;
        loop {
            // Within i64: the horizon is limited.
            let deleted = match connection.handle() {
                #[cfg(feature = "postgres")]
                Handle::Postgres(connection) => {
                    crate::postgres::purge(connection, &self.table, older_than.as_micros() as i64, batch)
                        .await?
                }
                #[cfg(feature = "sqlite")]
                Handle::Sqlite(connection) => {
                    crate::sqlite::purge(connection, &self.table, older_than.as_millis() as i64, batch)
                        .await?
                }
            };
            purged += deleted;
            if deleted < u64::from(batch) {
                return Ok(purged);
            }
        }
    }
}

/// Marks an event as processed in the table `processed_events`, in the transaction at hand, and says whether it is the
/// first to do so. On [`Outcome::First`] let the event have its effect in the same transaction, and commit.
///
/// While another transaction that has marked the event is open, this waits for its end: if it commits the answer is
/// [`Outcome::Duplicate`], if it rolls back [`Outcome::First`]. On SQLite begin with `BEGIN IMMEDIATE`, which is where
/// the waiting happens.
///
/// # Errors
/// [`ProcessedError::TryAgain`] when the answer cannot be had in this transaction: roll back and try it again. That is
/// so on PostgreSQL under REPEATABLE READ and SERIALIZABLE, when the event was marked by a transaction that committed
/// after this one began; under READ COMMITTED on a deadlock with a transaction that marks the same events in another
/// order; on SQLite when the database stays locked, or has changed since a transaction begun without IMMEDIATE read it.
///
/// [`ProcessedError::Invalid`] and [`ProcessedError::TooLarge`] for an id that is empty, has NUL in it or more than
/// [`MAX_EVENT_ID_BYTES`](crate::MAX_EVENT_ID_BYTES); otherwise the database's error.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub async fn once<C: Connection + ?Sized>(
    tx: &mut C,
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
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub async fn first_of<C: Connection + ?Sized, I: EventId>(
    tx: &mut C,
    event_ids: impl IntoIterator<Item = I>,
) -> Result<Vec<Outcome>, ProcessedError> {
    ProcessedEvents::default().first_of(tx, event_ids).await
}
