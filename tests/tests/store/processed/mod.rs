//! Consumers that process each event once: on every PostgreSQL there is and on SQLite, through all four libraries.

mod batches;
mod client;
mod guard;
mod kills;
mod races;
mod tables;
