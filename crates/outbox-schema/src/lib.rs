//! Writes outbox rows inside the application's own transaction.
