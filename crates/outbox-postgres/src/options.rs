use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use outbox_store::StoreError;
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

/// How to reach the database, and how a relay behaves there.
#[derive(Clone)]
pub struct PostgresOptions {
    /// Server, database, user; see [`PostgresOptions::from_url`].
    pub connect: PgConnectOptions,
    /// Schema of the outbox tables; `public` by default.
    pub schema: String,
    /// Name of the relay, written into its claims.
    pub relay: String,
    /// Most connections open for claims, settles and other short work; two more for long work come on top.
    pub max_connections: u32,
    /// Longest time for a claim or a settle, and the server's `statement_timeout`. Scans from far back, statistics and
    /// operators' commands get ten times as much.
    pub statement_timeout: Duration,
    /// A transaction pooler stands in between: no session settings are asked for; give the role a `statement_timeout`
    /// instead. The pooler must carry prepared statements over (pgbouncer from 1.21, `max_prepared_statements`).
    pub behind_pooler: bool,
    /// Idle claimers ask producers to notify. Off, they look four times a second: for applications with two-phase
    /// commits, because PostgreSQL does not prepare a transaction that has notified.
    pub wake_up: bool,
}

impl PostgresOptions {
    /// Defaults for a `postgres://` URL as sqlx understands it (`postgres:///db?host=/run/postgresql&user=x` too).
    ///
    /// # Errors
    /// [`StoreError::Unfit`] when it is no such URL. The text never repeats the URL: it may hold a password.
    pub fn from_url(url: &str) -> Result<Self, StoreError> {
        let connect = PgConnectOptions::from_str(url).map_err(|error| {
            StoreError::Unfit(format!(
                "not a PostgreSQL URL ({error}); it looks like postgres://user:password@host:5432/database"
            ))
        })?;
        Ok(Self {
            connect,
            schema: "public".to_owned(),
            relay: format!("outbox-{}", std::process::id()),
            max_connections: 8,
            statement_timeout: Duration::from_secs(10),
            behind_pooler: false,
            wake_up: true,
        })
    }

    /// The options of one connection whose statements may take this long.
    pub(crate) fn session(&self, statement_timeout: Duration) -> PgConnectOptions {
        let mut connect = self.connect.clone().disable_statement_logging();
        if connect.get_application_name().is_none() {
            connect = connect.application_name("outbox");
        }
        if self.behind_pooler {
            return connect.extra_float_digits(None);
        }
        let millis = statement_timeout.as_millis();
        // A half-open client never sits on a queue's lock: the statement ends, and the server notices that it is gone.
        connect.options([
            ("statement_timeout", millis.to_string()),
            // Compiling a statement takes seconds where running it takes milliseconds.
            ("jit", "off".to_owned()),
            ("tcp_keepalives_idle", "10".to_owned()),
            ("tcp_keepalives_interval", "5".to_owned()),
            ("tcp_keepalives_count", "3".to_owned()),
        ])
    }
}

// By hand: PgConnectOptions prints the password.
impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("host", &self.connect.get_host())
            .field("port", &self.connect.get_port())
            .field("database", &self.connect.get_database())
            .field("user", &self.connect.get_username())
            .field("schema", &self.schema)
            .field("relay", &self.relay)
            .field("max_connections", &self.max_connections)
            .field("statement_timeout", &self.statement_timeout)
            .field("behind_pooler", &self.behind_pooler)
            .field("wake_up", &self.wake_up)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_and_errors_keep_the_password_to_themselves() {
        let options = PostgresOptions::from_url("postgres://app:hunter2@db:5433/shop").unwrap();
        let shown = format!("{options:?}");
        assert!(shown.contains("shop") && !shown.contains("hunter2"), "{shown}");
        let error =
            PostgresOptions::from_url("postgres://app:hunter2@db:notaport/shop").unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn a_socket_directory_is_understood() {
        let options = PostgresOptions::from_url("postgres:///db?host=/run/postgresql&user=x").unwrap();
        assert_eq!(options.connect.get_username(), "x");
        assert_eq!(options.connect.get_database(), Some("db"));
    }
}
