use outbox_store::StoreError;
use rusqlite::ErrorCode;

/// A [`StoreError`] that statements' errors turn into by `?`.
#[derive(Debug)]
pub(crate) struct Error(pub(crate) StoreError);

impl Error {
    pub(crate) fn unfit(text: impl Into<String>) -> Self {
        Self(StoreError::Unfit(text.into()))
    }

    pub(crate) fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(StoreError::Failed(error.into()))
    }

    pub(crate) fn conflict(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(StoreError::Conflict(error.into()))
    }

    pub(crate) fn unavailable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(StoreError::Unavailable(error.into()))
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::conflict(format!(
                "{error}: another connection has held the write lock for longer than store.sqlite.busy_timeout; \
                 keep write transactions short"
            )),
            Some(ErrorCode::CannotOpen | ErrorCode::SystemIoFailure | ErrorCode::DiskFull) => {
                Self::unavailable(error)
            }
            Some(ErrorCode::NotADatabase) => Self::unfit(
                "not a SQLite database: the file's header is another one; check the path in store.url",
            ),
            Some(ErrorCode::DatabaseCorrupt) => Self::unfit(format!(
                "the SQLite file is damaged ({error}): run `PRAGMA integrity_check` in the sqlite3 tool and restore a backup"
            )),
            Some(ErrorCode::ReadOnly) => Self::unfit(format!(
                "the SQLite file cannot be written ({error}): give the relay's user write access to it and its directory"
            )),
            _ if error.to_string().contains("no such table: outbox_") => {
                Self::unfit(format!("{error}: the outbox tables are missing; run `outbox migrate up`"))
            }
            _ => Self::failed(error),
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self(error)
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        error.0
    }
}

/// True when the write lock is somebody else's and waiting may help.
pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}
