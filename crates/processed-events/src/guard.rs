use crate::ProcessedError;
use crate::table::{Table, named_table};

#[cfg(any(feature = "postgres", feature = "sqlite"))]
use crate::{Connection, Engine, connection::sealed::Handle};

/// Longest aggregate type and aggregate id together, in bytes: what outbox rows can have.
pub const MAX_KEY_BYTES: usize = 255 + 1024;

/// Whether an event came in its aggregate's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an event that came late may have to be left out"]
pub enum Arrival {
    /// Its seq is the highest so far, and now the aggregate's last.
    InOrder,
    /// A later event of the aggregate was seen before, or this one was. Nothing is changed.
    OutOfOrder {
        /// The highest seq so far.
        last: i64,
    },
}

impl Arrival {
    /// True when no later event was seen before.
    #[must_use]
    pub fn is_in_order(self) -> bool {
        self == Self::InOrder
    }
}

/// A consumer's table of the last seq it has seen of each aggregate: tells events that arrive behind a later one of
/// their aggregate.
///
/// The default is the table `processed_seqs`. Like [`ProcessedEvents`](crate::ProcessedEvents) it is one table a consumer,
/// and one a queue: seqs of an aggregate's events in different queues are not delivered in a common order. A new outbox
/// begins to count anew, so with another producer's database begins another table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeqGuard {
    table: Table,
}

named_table!(SeqGuard, "processed_seqs", PROCESSED_SEQS);

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl SeqGuard {
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

    /// Makes `seq` the aggregate's last, in the transaction at hand, if it is higher than the last one.
    ///
    /// Until the transaction ends others wait here for this aggregate, so its events have their effects one by one;
    /// aggregates do not wait for each other. A transaction with events of several aggregates takes them in a fixed
    /// order, such as sorted, or it may deadlock with another.
    ///
    /// # Errors
    /// As [`ProcessedEvents::once`](crate::ProcessedEvents::once); [`ProcessedError::TooLarge`] when type and id have
    /// more than [`MAX_KEY_BYTES`] together, [`ProcessedError::Invalid`] when there is NUL in them.
    pub async fn advance<C: Connection + ?Sized>(
        &self,
        tx: &mut C,
        aggregate_type: &str,
        aggregate_id: &str,
        seq: i64,
    ) -> Result<Arrival, ProcessedError> {
        let key = checked_key(aggregate_type, aggregate_id)?;
        let last = match tx.handle() {
            #[cfg(feature = "postgres")]
            Handle::Postgres(connection) => {
                if crate::postgres::advance(connection, &self.table, key, seq).await? {
                    return Ok(Arrival::InOrder);
                }
                crate::postgres::last_seen(connection, &self.table, key).await?
            }
            #[cfg(feature = "sqlite")]
            Handle::Sqlite(connection) => {
                if crate::sqlite::advance(connection, &self.table, key, seq).await? {
                    return Ok(Arrival::InOrder);
                }
                crate::sqlite::last_seen(connection, &self.table, key).await?
            }
        };
        Ok(Arrival::OutOfOrder { last })
    }
}

/// The key, if it can be one.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "tokio-postgres", feature = "rusqlite"))]
pub(crate) fn checked_key<'a>(
    aggregate_type: &'a str,
    aggregate_id: &'a str,
) -> Result<(&'a str, &'a str), ProcessedError> {
    let bytes = aggregate_type.len() + aggregate_id.len();
    if bytes > MAX_KEY_BYTES {
        let (actual, limit) = (bytes as u64, MAX_KEY_BYTES as u64);
        let field = "aggregate_type with aggregate_id";
        return Err(ProcessedError::TooLarge { field, actual, limit, unit: "bytes" });
    }
    for (field, value) in [("aggregate_type", aggregate_type), ("aggregate_id", aggregate_id)] {
        if value.contains('\0') {
            return Err(ProcessedError::Invalid { field, reason: "must not contain NUL".to_owned() });
        }
    }
    Ok((aggregate_type, aggregate_id))
}
