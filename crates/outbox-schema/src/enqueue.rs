use std::collections::HashSet;

use uuid::Uuid;

use crate::{EnqueueError, NewEvent};

/// Most events in one statement: 13 parameters each on SQLite, which allows 32,766 in all.
const CHUNK_EVENTS: usize = 1000;
/// Payload bytes after which a statement takes no further event.
const CHUNK_BYTES: usize = 32 << 20;

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// A row with this id was inserted; it counts once the transaction commits.
    Inserted(Uuid),
    /// A row with this id was there already and was left as it is.
    Duplicate(Uuid),
}

impl Enqueued {
    /// The event's id, either way.
    #[must_use]
    pub fn id(self) -> Uuid {
        match self {
            Self::Inserted(id) | Self::Duplicate(id) => id,
        }
    }

    /// True when the row was there already.
    #[must_use]
    pub fn is_duplicate(self) -> bool {
        matches!(self, Self::Duplicate(_))
    }
}

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
#[derive(Clone, Debug)]
pub struct Outbox {
    /// `outbox_tasks`, with the quoted schema before it if there is one.
    table: String,
}

impl Default for Outbox {
    fn default() -> Self {
        Self { table: "outbox_tasks".to_owned() }
    }
}

impl Outbox {
    /// The outbox in this schema: on PostgreSQL the relay's `[store.postgres] schema`, on SQLite the name of an
    /// attached database. The name is taken literally and quoted.
    ///
    /// # Errors
    /// [`EnqueueError::Invalid`] for an empty name and one with NUL in it, [`EnqueueError::TooLarge`] above 63 bytes,
    /// which PostgreSQL would cut off.
    pub fn in_schema(schema: &str) -> Result<Self, EnqueueError> {
        if schema.is_empty() || schema.contains('\0') {
            let reason = "must not be empty or contain NUL".to_owned();
            return Err(EnqueueError::Invalid { field: "schema", reason });
        }
        if schema.len() > 63 {
            let actual = schema.len() as u64;
            return Err(EnqueueError::TooLarge { field: "schema", actual, limit: 63, unit: "bytes" });
        }
        Ok(Self { table: format!("\"{}\".outbox_tasks", schema.replace('"', "\"\"")) })
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
        let event = prepare(event)?;
        let inserted = insert(connection.engine(), &self.table, std::slice::from_ref(&event)).await?;
        let id = event.event_id();
        Ok(if inserted == 1 { Enqueued::Inserted(id) } else { Enqueued::Duplicate(id) })
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
        let events = events.into_iter().map(prepare).collect::<Result<Vec<_>, _>>()?;
        let mut enqueued = Vec::with_capacity(events.len());
        for chunk in chunks(&events) {
            if chunk.iter().any(NewEvent::may_be_duplicate) {
                let mut inserted = insert_returning(connection.engine(), &self.table, chunk).await?;
                enqueued.extend(chunk.iter().map(|event| tell_apart(event.event_id(), &mut inserted)));
            } else {
                insert(connection.engine(), &self.table, chunk).await?;
                enqueued.extend(chunk.iter().map(|event| Enqueued::Inserted(event.event_id())));
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

fn prepare(event: NewEvent) -> Result<NewEvent, EnqueueError> {
    #[cfg(feature = "opentelemetry")]
    let event = event.traced();
    event.validate()?;
    Ok(event)
}

async fn insert(engine: Engine<'_>, table: &str, events: &[NewEvent]) -> Result<u64, EnqueueError> {
    match engine {
        #[cfg(feature = "postgres")]
        Engine::Postgres(connection) => crate::postgres::insert(connection, table, events).await,
        #[cfg(feature = "sqlite")]
        Engine::Sqlite(connection) => crate::sqlite::insert(connection, table, events).await,
    }
}

async fn insert_returning(
    engine: Engine<'_>,
    table: &str,
    events: &[NewEvent],
) -> Result<HashSet<Uuid>, EnqueueError> {
    match engine {
        #[cfg(feature = "postgres")]
        Engine::Postgres(connection) => crate::postgres::insert_returning(connection, table, events).await,
        #[cfg(feature = "sqlite")]
        Engine::Sqlite(connection) => crate::sqlite::insert_returning(connection, table, events).await,
    }
}

/// The first event with an inserted id is the one that was inserted; the same id again is its duplicate.
fn tell_apart(id: Uuid, inserted: &mut HashSet<Uuid>) -> Enqueued {
    if inserted.remove(&id) { Enqueued::Inserted(id) } else { Enqueued::Duplicate(id) }
}

fn chunks(events: &[NewEvent]) -> impl Iterator<Item = &[NewEvent]> {
    let mut rest = events;
    std::iter::from_fn(move || {
        let (chunk, later) = rest.split_at(chunk_length(rest));
        rest = later;
        (!chunk.is_empty()).then_some(chunk)
    })
}

fn chunk_length(events: &[NewEvent]) -> usize {
    let mut bytes = 0;
    events
        .iter()
        .take(CHUNK_EVENTS)
        .take_while(|event| {
            let room = bytes < CHUNK_BYTES;
            bytes += event.payload_bytes();
            room
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_bounded_and_complete() {
        let event = |bytes: usize| NewEvent::new("Order", "1").bytes(vec![0; bytes]);
        let lengths = |events: &[NewEvent]| chunks(events).map(<[_]>::len).collect::<Vec<_>>();

        assert_eq!(lengths(&[]), [0_usize; 0]);
        assert_eq!(lengths(&vec![event(0); 2001]), [1000, 1000, 1]);
        // 16 MiB each: the second one fills the statement.
        assert_eq!(lengths(&vec![event(16 << 20); 5]), [2, 2, 1]);
    }
}
