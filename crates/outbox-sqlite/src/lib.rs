//! The outbox relay's Store on SQLite.
