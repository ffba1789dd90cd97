use outbox_store::StoreError;

/// What a failed statement means to the relay.
pub(crate) fn store_error(error: sqlx::Error) -> StoreError {
    match &error {
        sqlx::Error::Database(database) => {
            let code = database.code().unwrap_or_default().into_owned();
            let message = database.message().to_owned();
            by_code(&code, &message, error)
        }
        sqlx::Error::Configuration(_) => StoreError::Unfit(error.to_string()),
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) => {
            StoreError::Unavailable(Box::new(error))
        }
        _ => StoreError::Failed(Box::new(error)),
    }
}

fn by_code(code: &str, message: &str, error: sqlx::Error) -> StoreError {
    match code {
        // serialization failure, deadlock, lock not available
        "40001" | "40P01" | "55P03" => StoreError::Conflict(Box::new(error)),
        // query canceled (statement_timeout), read-only transaction (a failover is under way), no such database
        "57014" | "25006" | "3D000" => StoreError::Unavailable(Box::new(error)),
        // schema, table, column or function that is not there
        "3F000" | "42P01" | "42703" | "42883" => StoreError::Unfit(format!(
            "{message}; run `outbox migrate up` with the schema this relay is configured for"
        )),
        "42501" => StoreError::Unfit(format!("{message}; grant it to the relay's role")),
        _ => match code.get(..2) {
            // connection, authorization, resources, shutdown
            Some("08" | "28" | "53" | "57") => StoreError::Unavailable(Box::new(error)),
            _ => StoreError::Failed(Box::new(error)),
        },
    }
}

/// A row does not have the column or the value that it must have.
pub(crate) fn unreadable(what: impl Into<String>) -> sqlx::Error {
    sqlx::Error::Decode(what.into().into())
}

/// The database did not answer in time.
pub(crate) fn timed_out(what: &str) -> StoreError {
    StoreError::Unavailable(format!("{what} took too long").into())
}
