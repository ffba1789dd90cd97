//! Writes outbox rows inside the application's own transaction.
//!
//! The row commits or rolls back together with the business data it tells about; the relay delivers every row that
//! was committed.
//!
//! ```
//! # #[cfg(feature = "sqlite")]
//! # async fn example(pool: sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
//! use outbox_schema::{NewEvent, enqueue};
//!
//! #[derive(serde::Serialize)]
//! struct OrderCreated {
//!     total_cents: i64,
//! }
//!
//! let mut tx = pool.begin().await?;
//! sqlx::query("INSERT INTO orders (id, total_cents) VALUES ('101', 4200)").execute(&mut *tx).await?;
//! let event = NewEvent::new("Order", "101").event_type("OrderCreated").json(&OrderCreated { total_cents: 4200 })?;
//! enqueue(&mut tx, event).await?;
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The aggregate's type and id together are the ordering key: events of one key are delivered in the order of their
//! insertion, provided that the application lets only one transaction at a time write for a key. It usually does
//! anyway, by locking or versioning the aggregate.
//!
//! # Sending something once: idempotency keys
//!
//! [`NewEvent::idempotency_key`] derives the event's id from the queue and a key of the application's choice, such as
//! `invoice:123:send-email`. Inserting it again is [`Enqueued::Duplicate`], not an error. This guards for as long as
//! the first row is kept (the queue's `published` and `keep_for`). Once it is gone a second insert makes a second
//! delivery, with the same id: then the consumers' deduplication on the id is what guards.
//!
//! # Features
//!
//! * `postgres`: `enqueue` on sqlx PostgreSQL transactions and connections
//! * `sqlite`: the same for SQLite
//! * `tokio-postgres`: `tokio_postgres::enqueue` on tokio-postgres transactions and clients
//! * `rusqlite`: `rusqlite::enqueue` on rusqlite transactions and connections
//! * `opentelemetry`: events carry the current span's `traceparent`
//!
//! Without an engine there is only the builder, for applications that insert in their own way.

#[cfg(any(feature = "postgres", feature = "sqlite", feature = "tokio-postgres", feature = "rusqlite"))]
mod batch;
#[cfg(any(feature = "postgres", feature = "tokio-postgres"))]
mod columns;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod enqueue;
mod error;
mod event;
mod limits;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "tokio-postgres", feature = "rusqlite"))]
mod row;
#[cfg(feature = "rusqlite")]
pub mod rusqlite;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "tokio-postgres")]
pub mod tokio_postgres;
#[cfg(feature = "opentelemetry")]
mod trace;
#[cfg(any(feature = "sqlite", feature = "rusqlite"))]
mod values;

#[cfg(any(feature = "postgres", feature = "sqlite", feature = "tokio-postgres", feature = "rusqlite"))]
pub use batch::Enqueued;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use enqueue::{Connection, Outbox, enqueue, enqueue_all};
pub use error::EnqueueError;
pub use event::{NewEvent, idempotent_id};
pub use limits::{
    MAX_AGGREGATE_ID_BYTES, MAX_AGGREGATE_TYPE_BYTES, MAX_CONTENT_TYPE_BYTES, MAX_DELAY,
    MAX_DESTINATION_BYTES, MAX_EVENT_TYPE_BYTES, MAX_HEADER_NAME_BYTES, MAX_HEADER_VALUE_BYTES, MAX_HEADERS,
    MAX_IDEMPOTENCY_KEY_BYTES, MAX_PAYLOAD_BYTES, MAX_QUEUE_BYTES,
};
