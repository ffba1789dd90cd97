//! The outbox relay's Store on SQLite.
//!
//! SQLite is called through rusqlite: a claim is a transaction with decisions between its statements, which is plain
//! code when the calls are plain calls, and rows are read without a copy of each value. It shares the one SQLite
//! library in the binary with sqlx, which applications use.
//!
//! `claim` reads what `judge`, which is pure, decides on; `settle` and `sweep` are the other two halves of the
//! protocol. `writer` is the only place where transactions begin and end.

mod claim;
mod connection;
mod error;
mod judge;
mod keys;
mod migrate;
mod operator;
mod options;
mod rows;
mod settle;
mod store;
mod sweep;
mod watch;
mod writer;

pub use migrate::migrations_sql;
pub use options::{SqliteOptions, Synchronous};
pub use store::SqliteStore;
