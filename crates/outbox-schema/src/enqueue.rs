use std::collections::HashSet;

use uuid::Uuid;

use crate::batch::{self, Enqueued, Table};
use crate::{EnqueueError, NewEvent};

/// What events can be enqueued on: sqlx transactions, connections and pooled connections of the engines whose feature
/// is on. Sealed.
///
/// Use the transaction that writes the business data. On a connection without one the insert commits alone.
pub trait Connection: sealed::Sealed {}

pub(crate) mod sealed {
    pub trait Sealed: Send {
        fn engine(&mut self) -> Engine<'_>;
    }

    #[derive(Debug)]
    pub enum Engine<'a> {
        #[cfg(feature = "postgres")]
        Postgres(&'a mut sqlx::PgConnection),
        #[cfg(feature = "sqlite")]
        Sqlite(&'a mut sqlx::SqliteConnection),
    }
}

use sealed::{Engine, Sealed};

macro_rules! connections {
    ($feature:literal, $engine:ident, $database:ty, $connection:ty) => {
        #[cfg(feature = $feature)]
        const _: () = {
            impl Connection for $connection {}
            impl Sealed for $connection {
                fn engine(&mut self) -> Engine<'_> {
                    Engine::$engine(self)
                }
            }
            impl Connection for sqlx::Transaction<'_, $database> {}
            impl Sealed for sqlx::Transaction<'_, $database> {
                fn engine(&mut self) -> Engine<'_> {
                    Engine::$engine(self)
                }
            }
            impl Connection for sqlx::pool::PoolConnection<$database> {}
            impl Sealed for sqlx::pool::PoolConnection<$database> {
                fn engine(&mut self) -> Engine<'_> {
                    Engine::$engine(self)
                }
            }
        };
    };
}

connections!("postgres", Postgres, sqlx::Postgres, sqlx::PgConnection);
connections!("sqlite", Sqlite, sqlx::Sqlite, sqlx::SqliteConnection);

/// Where the outbox tables are, for applications that keep them in a schema of their own. The functions
/// [`enqueue`](crate::enqueue()) and [`enqueue_all`] are for those that do not.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    table: Table,
}

impl Outbox {
    /// The outbox in this schema: on PostgreSQL the relay's `[store.postgres] schema`, on SQLite the name of an
    /// attached database. The name is taken literally and quoted.
    ///
    /// # Errors
    /// [`EnqueueError::Invalid`] for an empty name and one with NUL in it, [`EnqueueError::TooLarge`] above 63 bytes,
    /// which PostgreSQL would cut off.
    pub fn in_schema(schema: &str) -> Result<Self, EnqueueError> {
        Ok(Self { table: Table::in_schema(schema)? })
    }

    /// Inserts one event; see [`enqueue`](crate::enqueue()).
    ///
    /// # Errors
    /// As [`enqueue`](crate::enqueue()).
    pub async fn enqueue<C: Connection + ?Sized>(
        &self,
        connection: &mut C,
        event: NewEvent,
    ) -> Result<Enqueued, EnqueueError> {
        let event = batch::prepare(event)?;
        let inserted = insert(connection.engine(), &self.table, std::slice::from_ref(&event)).await?;
        Ok(batch::outcome(&event, inserted))
    }

    /// Inserts many events; see [`enqueue_all`].
    ///
    /// # Errors
    /// As [`enqueue_all`].
    pub async fn enqueue_all<C: Connection + ?Sized>(
        &self,
        connection: &mut C,
        events: impl IntoIterator<Item = NewEvent>,
    ) -> Result<Vec<Enqueued>, EnqueueError> {
        let events = batch::prepare_all(events)?;
        let mut enqueued = Vec::with_capacity(events.len());
        for chunk in batch::chunks(&events) {
            if batch::may_have_duplicates(chunk) {
                let inserted = insert_returning(connection.engine(), &self.table, chunk).await?;
                enqueued.extend(batch::tell_apart(chunk, inserted));
            } else {
                insert(connection.engine(), &self.table, chunk).await?;
                enqueued.extend(batch::all_inserted(chunk));
            }
        }
        Ok(enqueued)
    }
}

/// Inserts one event into the outbox, in the transaction at hand.
///
/// A role that may INSERT into `outbox_tasks` and nothing else is enough.
///
/// On PostgreSQL a second insert of an id whose first is not yet committed waits for that transaction to end; under
/// REPEATABLE READ and SERIALIZABLE it may then fail with a serialization error, as any insert of a taken key.
///
/// # Errors
/// A limit of the event, or the database's error. After the latter a PostgreSQL transaction can only be rolled back.
pub async fn enqueue<C: Connection + ?Sized>(
    connection: &mut C,
    event: NewEvent,
) -> Result<Enqueued, EnqueueError> {
    Outbox::default().enqueue(connection, event).await
}

/// Inserts many events, in the given order, in one statement for each 1,000 events or 32 MiB of payload. Answers in
/// the same order. All limits are checked before the first row is inserted.
///
/// With idempotency keys or ids of the application's own among them, the statement reads back which ids it inserted:
/// on PostgreSQL the role then needs `GRANT SELECT (id)` besides INSERT.
///
/// # Errors
/// As [`enqueue`](crate::enqueue()). Where there are more events than go into one statement and there is no
/// transaction around, an error may leave the first ones inserted.
pub async fn enqueue_all<C: Connection + ?Sized>(
    connection: &mut C,
    events: impl IntoIterator<Item = NewEvent>,
) -> Result<Vec<Enqueued>, EnqueueError> {
    Outbox::default().enqueue_all(connection, events).await
}

async fn insert(engine: Engine<'_>, table: &Table, events: &[NewEvent]) -> Result<u64, EnqueueError> {
    match engine {
        #[cfg(feature = "postgres")]
        Engine::Postgres(connection) => crate::postgres::insert(connection, table, events).await,
        #[cfg(feature = "sqlite")]
        Engine::Sqlite(connection) => crate::sqlite::insert(connection, table, events).await,
    }
}

async fn insert_returning(
    engine: Engine<'_>,
    table: &Table,
    events: &[NewEvent],
) -> Result<HashSet<Uuid>, EnqueueError> {
    match engine {
        #[cfg(feature = "postgres")]
        Engine::Postgres(connection) => crate::postgres::insert_returning(connection, table, events).await,
        #[cfg(feature = "sqlite")]
        Engine::Sqlite(connection) => crate::sqlite::insert_returning(connection, table, events).await,
    }
}
