//! Enqueueing on rusqlite: [`enqueue`] and [`enqueue_all`] take a `Transaction`, a `Savepoint` or a `Connection`.
//!
//! ```
//! # fn example(connection: &mut rusqlite::Connection) -> Result<(), Box<dyn std::error::Error>> {
//! use outbox_schema::NewEvent;
//! use outbox_schema::rusqlite::enqueue;
//! use rusqlite::TransactionBehavior;
//!
//! let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
//! tx.execute("INSERT INTO orders (id, total_cents) VALUES ('101', 4200)", [])?;
//! enqueue(&tx, NewEvent::new("Order", "101").event_type("OrderCreated").json_text(r#"{"total_cents": 4200}"#))?;
//! tx.commit()?;
//! # Ok(())
//! # }
//! ```

use std::collections::HashSet;

use rusqlite::types::{ToSqlOutput, Type, ValueRef};
use rusqlite::{Connection, Statement};
use uuid::Uuid;

use crate::batch::{self, Enqueued, Table};
use crate::values::{self, Value};
use crate::{EnqueueError, NewEvent};

/// Where the outbox tables are, for applications that keep them in an attached database. The functions of this module are
/// for those that do not.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    table: Table,
}

impl Outbox {
    /// The outbox in the attached database of this name, which is taken literally and quoted.
    ///
    /// # Errors
    /// [`EnqueueError::Invalid`] for an empty name and one with NUL in it, [`EnqueueError::TooLarge`] above 63 bytes.
    pub fn in_schema(schema: &str) -> Result<Self, EnqueueError> {
        Ok(Self { table: Table::in_schema(schema)? })
    }

    /// Inserts one event; see [`enqueue`].
    ///
    /// # Errors
    /// As [`enqueue`].
    pub fn enqueue(&self, connection: &Connection, event: NewEvent) -> Result<Enqueued, EnqueueError> {
        let event = batch::prepare(event)?;
        let inserted = insert(connection, &self.table, std::slice::from_ref(&event))?;
        Ok(batch::outcome(&event, inserted))
    }

    /// Inserts many events; see [`enqueue_all`].
    ///
    /// # Errors
    /// As [`enqueue_all`].
    pub fn enqueue_all(
        &self,
        connection: &Connection,
        events: impl IntoIterator<Item = NewEvent>,
    ) -> Result<Vec<Enqueued>, EnqueueError> {
        let events = batch::prepare_all(events)?;
        let mut enqueued = Vec::with_capacity(events.len());
        for chunk in batch::chunks(&events) {
            if batch::may_have_duplicates(chunk) {
                let inserted = insert_returning(connection, &self.table, chunk)?;
                enqueued.extend(batch::tell_apart(chunk, inserted));
            } else {
                insert(connection, &self.table, chunk)?;
                enqueued.extend(batch::all_inserted(chunk));
            }
        }
        Ok(enqueued)
    }
}

/// Inserts one event into the outbox, in the transaction at hand. On a connection without one the insert commits alone.
///
/// # Errors
/// A limit of the event, or the database's error.
pub fn enqueue(connection: &Connection, event: NewEvent) -> Result<Enqueued, EnqueueError> {
    Outbox::default().enqueue(connection, event)
}

/// Inserts many events, in the given order, in one statement for each 1,000 events or 32 MiB of payload. Answers in
/// the same order. All limits are checked before the first row is inserted.
///
/// # Errors
/// As [`enqueue`]. Where there are more events than go into one statement and there is no transaction around, an error
/// may leave the first ones inserted.
pub fn enqueue_all(
    connection: &Connection,
    events: impl IntoIterator<Item = NewEvent>,
) -> Result<Vec<Enqueued>, EnqueueError> {
    Outbox::default().enqueue_all(connection, events)
}

/// How many rows were inserted.
fn insert(connection: &Connection, table: &Table, events: &[NewEvent]) -> Result<u64, EnqueueError> {
    let sql = values::insert(table, events.len());
    // One text a number of events: only the usual one is worth a place in the statement cache.
    let inserted = if events.len() == 1 {
        let mut statement = connection.prepare_cached(&sql)?;
        bind(&mut statement, events)?;
        statement.raw_execute()?
    } else {
        let mut statement = connection.prepare(&sql)?;
        bind(&mut statement, events)?;
        statement.raw_execute()?
    };
    Ok(inserted as u64)
}

/// The ids that were inserted.
fn insert_returning(
    connection: &Connection,
    table: &Table,
    events: &[NewEvent],
) -> Result<HashSet<Uuid>, EnqueueError> {
    let mut statement = connection.prepare(&values::insert_returning(table, events.len()))?;
    bind(&mut statement, events)?;
    let mut rows = statement.raw_query();
    let mut ids = HashSet::new();
    while let Some(row) = rows.next()? {
        let id = Uuid::parse_str(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?)
            .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, error.into()))?;
        ids.insert(id);
    }
    Ok(ids)
}

fn bind(statement: &mut Statement<'_>, events: &[NewEvent]) -> rusqlite::Result<()> {
    for (position, value) in (1..).zip(values::values(events)) {
        let value = match &value {
            Value::Text(Some(text)) => ValueRef::Text(text.as_bytes()),
            Value::Blob(bytes) => ValueRef::Blob(bytes),
            Value::Integer(Some(number)) => ValueRef::Integer(*number),
            Value::Text(None) | Value::Integer(None) => ValueRef::Null,
        };
        statement.raw_bind_parameter(position, ToSqlOutput::Borrowed(value))?;
    }
    Ok(())
}
