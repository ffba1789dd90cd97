//! Consumers process each event once: effect and mark commit together.
//!
//! A relay delivers at least once. A consumer that inserts the event's id into a table of its own, in the transaction in
//! which the event has its effect, sees each event once in effect:
//!
//! ```
//! # #[cfg(feature = "postgres")]
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use processed_events::once;
//!
//! let event_id = "01980000-0000-7000-8000-000000000001";
//! let mut tx = pool.begin().await?;
//! if once(&mut tx, event_id).await?.is_first() {
//!     sqlx::query("UPDATE balances SET cents = cents + 4200 WHERE account = 'a'").execute(&mut *tx).await?;
//! }
//! tx.commit().await?;
//! // Only now acknowledge it to the broker.
//! # Ok(())
//! # }
//! ```
//!
//! [`ProcessedEvents`] names the table, makes it and forgets old events; [`EventMeta`] reads what the relay's sinks say
//! about an event; [`SeqGuard`] tells events that arrive behind a later one of their aggregate. The guide is
//! `docs/consuming.md`.
//!
//! # Features
//!
//! * `postgres`: sqlx transactions and connections of PostgreSQL
//! * `sqlite`: the same of SQLite
//! * `tokio-postgres`: the module `tokio_postgres`, the same for that library
//! * `rusqlite`: the module `rusqlite`, the same for that library, not async
//!
//! Without any there is [`EventMeta`], and the tables' SQL.

#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod connection;
mod error;
mod guard;
mod mark;
mod meta;
#[cfg(feature = "postgres")]
mod postgres;
mod processed;
#[cfg(feature = "rusqlite")]
pub mod rusqlite;
#[cfg(feature = "sqlite")]
mod sqlite;
mod statements;
mod table;
#[cfg(feature = "tokio-postgres")]
pub mod tokio_postgres;

#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use connection::Connection;
pub use error::ProcessedError;
pub use guard::{Arrival, MAX_KEY_BYTES, SeqGuard};
pub use mark::{EventId, MAX_EVENT_ID_BYTES, MAX_HORIZON, MAX_PURGE_BATCH, Outcome};
pub use meta::{EventMeta, MetaError};
pub use processed::ProcessedEvents;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use processed::{first_of, once};
pub use table::{Engine, MAX_SCHEMA_BYTES, MAX_TABLE_BYTES};

/// The guide's code compiles.
#[cfg(all(
    doctest,
    feature = "postgres",
    feature = "sqlite",
    feature = "tokio-postgres",
    feature = "rusqlite"
))]
#[doc = include_str!("../../../docs/consuming.md")]
mod guide {}
