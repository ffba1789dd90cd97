/// Why an event was not inserted.
///
/// Everything but `Database`, `TokioPostgres` and `Rusqlite` is found before a statement is sent, so the transaction is
/// still good.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// A field is longer, larger or more than allowed.
    #[error("{field}: {actual} {unit}, at most {limit} are allowed")]
    TooLarge {
        /// The field's name.
        field: &'static str,
        /// What it has.
        actual: u64,
        /// What it may have.
        limit: u64,
        /// What is counted: bytes, headers, seconds, retries.
        unit: &'static str,
    },
    /// A field holds what cannot be stored or delivered.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field's name.
        field: &'static str,
        /// What is wrong with it, and what is allowed.
        reason: String,
    },
    /// The payload could not be serialised to JSON.
    #[error("payload: cannot be serialised to JSON: {0}")]
    Serialize(#[source] serde_json::Error),
    /// The payload given as JSON text is not JSON.
    #[error("payload: not valid JSON: {0}; give other text with bytes() and a content_type")]
    NotJson(#[source] serde_json::Error),
    /// The database refused the insert. Without outbox tables: `outbox migrate up` makes them.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    #[error("inserting into outbox_tasks failed: {0}")]
    Database(#[from] sqlx::Error),
    /// The same through tokio-postgres.
    #[cfg(feature = "tokio-postgres")]
    #[error("inserting into outbox_tasks failed: {}", message(.0))]
    TokioPostgres(#[from] tokio_postgres::Error),
    /// The same through rusqlite.
    #[cfg(feature = "rusqlite")]
    #[error("inserting into outbox_tasks failed: {0}")]
    Rusqlite(#[from] rusqlite::Error),
}

/// tokio-postgres says "db error" and leaves what the server said to the source.
#[cfg(feature = "tokio-postgres")]
fn message(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), ToString::to_string)
}
