//! The outbox relay's Store on PostgreSQL.
