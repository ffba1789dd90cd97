//! The outbox relay's Store on PostgreSQL.
//!
//! A claim and a settle are each one autocommit statement that calls a function of the schema; the functions are installed
//! by the migrations and carry a version in their names, so that old and new relays run side by side.

mod claimer;
mod connections;
mod error;
mod event;
mod migrations;
mod options;
mod settle;
mod sql;
mod store;
mod wake_up;
mod wire;

pub use migrations::migrations_sql;
pub use options::PostgresOptions;
pub use store::PostgresStore;
