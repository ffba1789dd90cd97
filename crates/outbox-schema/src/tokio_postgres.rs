//! Enqueueing on tokio-postgres: [`enqueue`] and [`enqueue_all`] take a `Transaction`, a `Client`, or what a pool makes of
//! them.
//!
//! ```
//! # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use outbox_schema::NewEvent;
//! use outbox_schema::tokio_postgres::enqueue;
//!
//! let tx = client.transaction().await?;
//! tx.execute("INSERT INTO orders (id, total_cents) VALUES ('101', 4200)", &[]).await?;
//! enqueue(&tx, NewEvent::new("Order", "101").event_type("OrderCreated").json_text(r#"{"total_cents": 4200}"#)).await?;
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Each statement is one round trip and is not prepared under a name, so it also works behind a transaction pooler.

use std::collections::HashSet;

use tokio_postgres::GenericClient;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::batch::{self, Enqueued, Table};
use crate::columns::{Columns, INSERT, INSERT_RETURNING};
use crate::{EnqueueError, NewEvent};

/// Where the outbox tables are, for applications that keep them in a schema of their own. The functions of this module
/// are for those that do not.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    table: Table,
}

impl Outbox {
    /// The outbox in this schema, the relay's `[store.postgres] schema`. The name is taken literally and quoted.
    ///
    /// # Errors
    /// [`EnqueueError::Invalid`] for an empty name and one with NUL in it, [`EnqueueError::TooLarge`] above 63 bytes,
    /// which PostgreSQL would cut off.
    pub fn in_schema(schema: &str) -> Result<Self, EnqueueError> {
        Ok(Self { table: Table::in_schema(schema)? })
    }

    /// Inserts one event; see [`enqueue`].
    ///
    /// # Errors
    /// As [`enqueue`].
    pub async fn enqueue<C: GenericClient + Sync + ?Sized>(
        &self,
        client: &C,
        event: NewEvent,
    ) -> Result<Enqueued, EnqueueError> {
        let event = batch::prepare(event)?;
        let inserted = insert(client, &self.table, std::slice::from_ref(&event)).await?;
        Ok(batch::outcome(&event, inserted))
    }

    /// Inserts many events; see [`enqueue_all`].
    ///
    /// # Errors
    /// As [`enqueue_all`].
    pub async fn enqueue_all<C: GenericClient + Sync + ?Sized>(
        &self,
        client: &C,
        events: impl IntoIterator<Item = NewEvent>,
    ) -> Result<Vec<Enqueued>, EnqueueError> {
        let events = batch::prepare_all(events)?;
        let mut enqueued = Vec::with_capacity(events.len());
        for chunk in batch::chunks(&events) {
            if batch::may_have_duplicates(chunk) {
                let inserted = insert_returning(client, &self.table, chunk).await?;
                enqueued.extend(batch::tell_apart(chunk, inserted));
            } else {
                insert(client, &self.table, chunk).await?;
                enqueued.extend(batch::all_inserted(chunk));
            }
        }
        Ok(enqueued)
    }
}

/// Inserts one event into the outbox, in the transaction at hand. On a client without one the insert commits alone.
///
/// A role that may INSERT into `outbox_tasks` and nothing else is enough. A second insert of an id whose first is not yet
/// committed waits for that transaction to end; under REPEATABLE READ and SERIALIZABLE it may then fail with a
/// serialization error, as any insert of a taken key.
///
/// # Errors
/// A limit of the event, or the database's error. After the latter the transaction can only be rolled back.
pub async fn enqueue<C: GenericClient + Sync + ?Sized>(
    client: &C,
    event: NewEvent,
) -> Result<Enqueued, EnqueueError> {
    Outbox::default().enqueue(client, event).await
}

/// Inserts many events, in the given order, in one statement for each 1,000 events or 32 MiB of payload. Answers in
/// the same order. All limits are checked before the first row is inserted.
///
/// With idempotency keys or ids of the application's own among them, the statement reads back which ids it inserted: the
/// role then needs `GRANT SELECT (id)` besides INSERT.
///
/// # Errors
/// As [`enqueue`]. Where there are more events than go into one statement and there is no transaction around, an error
/// may leave the first ones inserted.
pub async fn enqueue_all<C: GenericClient + Sync + ?Sized>(
    client: &C,
    events: impl IntoIterator<Item = NewEvent>,
) -> Result<Vec<Enqueued>, EnqueueError> {
    Outbox::default().enqueue_all(client, events).await
}

/// How many rows were inserted.
async fn insert<C: GenericClient + Sync + ?Sized>(
    client: &C,
    table: &Table,
    events: &[NewEvent],
) -> Result<u64, EnqueueError> {
    let columns = Columns::of(events);
    Ok(client.execute_typed(&table.render(INSERT), &arguments(&columns)).await?)
}

/// The ids that were inserted.
async fn insert_returning<C: GenericClient + Sync + ?Sized>(
    client: &C,
    table: &Table,
    events: &[NewEvent],
) -> Result<HashSet<Uuid>, EnqueueError> {
    let columns = Columns::of(events);
    let rows = client.query_typed(&table.render(INSERT_RETURNING), &arguments(&columns)).await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

fn arguments<'a>(columns: &'a Columns<'_>) -> [(&'a (dyn ToSql + Sync), Type); 13] {
    [
        (&columns.ids, Type::UUID_ARRAY),
        (&columns.queues, Type::TEXT_ARRAY),
        (&columns.aggregate_types, Type::TEXT_ARRAY),
        (&columns.aggregate_ids, Type::TEXT_ARRAY),
        (&columns.event_types, Type::TEXT_ARRAY),
        (&columns.payloads, Type::TEXT_ARRAY),
        (&columns.payload_bytes, Type::BYTEA_ARRAY),
        (&columns.content_types, Type::TEXT_ARRAY),
        (&columns.headers, Type::TEXT_ARRAY),
        (&columns.destinations, Type::TEXT_ARRAY),
        (&columns.max_retries, Type::INT4_ARRAY),
        (&columns.priorities, Type::INT2_ARRAY),
        (&columns.delays_us, Type::INT8_ARRAY),
    ]
}
