use std::error::Error;

/// Why an event was not marked.
///
/// After `TryAgain` and `Database` a PostgreSQL transaction can only be rolled back. Everything else is found before a
/// statement is sent, so the transaction is still good.
///
/// A database library's own error converts into it, told apart in the same way, so that a consumer's whole transaction
/// can have this one error: its own statements and the commit may fail with a serialisation failure as well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessedError {
    /// A field is longer or larger than allowed.
    #[error("{field}: {actual} {unit}, at most {limit} are allowed")]
    TooLarge {
        /// The field's name.
        field: &'static str,
        /// What it has.
        actual: u64,
        /// What it may have.
        limit: u64,
        /// What is counted: bytes, rows, seconds.
        unit: &'static str,
    },
    /// A field holds what cannot be stored.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field's name.
        field: &'static str,
        /// What is wrong with it, and what is allowed.
        reason: String,
    },
    /// Another transaction was in the way: a serialisation failure, a deadlock or a lock that was not to be had in time
    /// (PostgreSQL 40001, 40P01, 55P03; any SQLITE_BUSY). Nothing is wrong with the event or the consumer: roll back and
    /// try the same transaction again, from its beginning.
    #[error("try the transaction again: {0}")]
    TryAgain(#[source] Box<dyn Error + Send + Sync>),
    /// The database refused the statement or cannot be reached. Without the table: `migrate` makes it.
    #[error("the database failed: {0}")]
    Database(#[source] Box<dyn Error + Send + Sync>),
}

impl ProcessedError {
    /// True when nothing is wrong but that another transaction was in the way: try the same transaction again.
    #[must_use]
    pub fn is_try_again(&self) -> bool {
        matches!(self, Self::TryAgain(_))
    }

    #[cfg(any(feature = "postgres", feature = "sqlite", feature = "tokio-postgres", feature = "rusqlite"))]
    fn of(try_again: bool, error: impl Error + Send + Sync + 'static) -> Self {
        if try_again { Self::TryAgain(error.into()) } else { Self::Database(error.into()) }
    }
}

/// Serialisation failure, deadlock, lock not available.
#[cfg(any(feature = "postgres", feature = "tokio-postgres"))]
fn postgres_says_try_again(code: &str) -> bool {
    matches!(code, "40001" | "40P01" | "55P03")
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
impl From<sqlx::Error> for ProcessedError {
    fn from(error: sqlx::Error) -> Self {
        let try_again = error.as_database_error().is_some_and(sqlx_says_try_again);
        Self::of(try_again, error)
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite"))]
fn sqlx_says_try_again(error: &dyn sqlx::error::DatabaseError) -> bool {
    #[cfg(feature = "postgres")]
    if let Some(error) = error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
        return postgres_says_try_again(error.code());
    }
    #[cfg(feature = "sqlite")]
    if error.try_downcast_ref::<sqlx::sqlite::SqliteError>().is_some() {
        // An extended code has the primary one in its lowest byte.
        const SQLITE_BUSY: u32 = 5;
        let code = error.code().and_then(|code| code.parse::<u32>().ok());
        return code.is_some_and(|code| code & 0xff == SQLITE_BUSY);
    }
    false
}

#[cfg(feature = "tokio-postgres")]
impl From<tokio_postgres::Error> for ProcessedError {
    fn from(error: tokio_postgres::Error) -> Self {
        let try_again = error.code().is_some_and(|code| postgres_says_try_again(code.code()));
        Self::of(try_again, error)
    }
}

#[cfg(feature = "rusqlite")]
impl From<rusqlite::Error> for ProcessedError {
    fn from(error: rusqlite::Error) -> Self {
        let try_again = error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy);
        Self::of(try_again, error)
    }
}
