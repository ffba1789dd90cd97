use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbox_store::StoreError;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{error::Elapsed, timeout};

use crate::error::{store_error, timed_out};

/// Longest time to open a connection, all of TCP, TLS and authentication.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time for an idle connection to show that it is alive.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Oldest server that has what the queries use (xid8, pg_current_xact_id).
const OLDEST_SERVER: i32 = 130_000;

/// A few connections of one kind, reused.
///
/// Not sqlx's pool, because whether a connection may be used again is decided here by one rule: only when its last
/// statement has been answered. One whose statement timed out or was cancelled is closed, so that nothing is left running
/// on it that the next user would wait for or commit. And giving one back costs no round trip.
pub(crate) struct Connections {
    options: PgConnectOptions,
    idle: Mutex<Vec<PgConnection>>,
    permits: Arc<Semaphore>,
    deadline: Duration,
    /// Whether an idle connection has to show that it is alive before it is used.
    probed: bool,
}

impl Connections {
    /// At most `most` connections, whose statements are given up after `deadline`.
    pub(crate) fn new(options: PgConnectOptions, most: u32, deadline: Duration) -> Self {
        let most = usize::try_from(most.max(1)).unwrap_or(1);
        let (idle, permits) = (Mutex::new(Vec::new()), Arc::new(Semaphore::new(most)));
        Self { options, idle, permits, deadline, probed: false }
    }

    /// The same for statements that may take long, where a round trip more does not matter: on a link that has gone
    /// silent a statement would be waited for as long as the longest may take.
    pub(crate) fn probed(self) -> Self {
        Self { probed: true, ..self }
    }

    /// Longest time to wait for a statement's answer. The server's own timeout comes first.
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline + Duration::from_secs(5)
    }

    /// A connection for one statement.
    pub(crate) async fn take(&self) -> Result<Taken<'_>, StoreError> {
        let permit = timeout(self.deadline, Arc::clone(&self.permits).acquire_owned())
            .await
            .map_err(|_| timed_out("waiting for a free connection"))?
            .map_err(|_| StoreError::Unavailable("the store is closed".into()))?;
        let connection = match self.idle_one().await {
            Some(connection) => connection,
            None => self.open().await?,
        };
        Ok(Taken { connection, _permit: permit, home: self })
    }

    async fn idle_one(&self) -> Option<PgConnection> {
        let mut connection = self.idle().pop()?;
        if self.probed && !matches!(timeout(PROBE_TIMEOUT, connection.ping()).await, Ok(Ok(()))) {
            // What has happened to it has happened to the others.
            self.idle().clear();
            return None;
        }
        Some(connection)
    }

    async fn open(&self) -> Result<PgConnection, StoreError> {
        let fresh = async {
            let mut connection = self.options.connect().await?;
            let server: (i32, String, bool) =
                sqlx::query_as(include_str!("sql/check_server.sql")).fetch_one(&mut connection).await?;
            Ok((connection, server))
        };
        let (connection, (version, isolation, standby)) = timeout(CONNECT_TIMEOUT, fresh)
            .await
            .map_err(|_| timed_out("connecting"))?
            .map_err(store_error)?;
        check_server(version, &isolation, standby)?;
        Ok(connection)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<PgConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the idle ones and gives out no more; those in use are closed when they come back.
    pub(crate) async fn close(&self) {
        self.permits.close();
        let idle = std::mem::take(&mut *self.idle());
        for connection in idle {
            // It is going away in any case.
            let _ = timeout(Duration::from_secs(1), connection.close()).await;
        }
    }
}

fn check_server(version: i32, isolation: &str, standby: bool) -> Result<(), StoreError> {
    if version < OLDEST_SERVER {
        return Err(StoreError::Unfit(format!(
            "PostgreSQL {} is too old; the outbox needs 13 or newer",
            version / 10_000
        )));
    }
    if isolation != "read committed" {
        return Err(StoreError::Unfit(format!(
            "default_transaction_isolation is \"{isolation}\", but claims are only right under READ COMMITTED; \
             run ALTER ROLE <the relay's role> SET default_transaction_isolation = 'read committed'"
        )));
    }
    if standby {
        return Err(StoreError::Unavailable("the server is a read-only standby".into()));
    }
    Ok(())
}

/// A connection in use. Dropped without [`Taken::answered`] it is closed: its statement may still be running.
pub(crate) struct Taken<'a> {
    connection: PgConnection,
    _permit: OwnedSemaphorePermit,
    home: &'a Connections,
}

impl Taken<'_> {
    /// Longest time to wait for the statement's answer.
    pub(crate) fn deadline(&self) -> Duration {
        self.home.deadline()
    }

    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// Takes the statement's answer, and the connection back where the answer shows that it is sound.
    pub(crate) fn answered<T>(
        self,
        answer: Result<Result<T, sqlx::Error>, Elapsed>,
    ) -> Result<T, StoreError> {
        let Ok(answer) = answer else {
            // The server's own timeout comes first: it is the link that is dead, and the others with it.
            self.home.idle().clear();
            return Err(timed_out("a statement"));
        };
        let sound = match &answer {
            Ok(_) | Err(sqlx::Error::Database(_)) => true,
            Err(sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_)) => {
                // The server has gone: so have the others.
                self.home.idle().clear();
                false
            }
            // Rows that could not be read may still be on their way.
            Err(_) => false,
        };
        if sound && !self.home.permits.is_closed() {
            self.home.idle().push(self.connection);
        }
        answer.map_err(store_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_refused_for_what_it_is() {
        assert!(check_server(150_004, "read committed", false).is_ok());
        assert!(matches!(check_server(120_000, "read committed", false), Err(StoreError::Unfit(_))));
        assert!(matches!(check_server(150_004, "repeatable read", false), Err(StoreError::Unfit(_))));
        assert!(matches!(check_server(150_004, "read committed", true), Err(StoreError::Unavailable(_))));
    }
}
