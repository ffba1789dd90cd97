//! Connections, each lent to one batch at a time.
//!
//! A connection that is not given back is closed, and with it goes whatever was still to be written: that is how a
//! batch whose future is dropped, or whose deadline has come, leaves nothing queued.

use std::ops::Deref;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::options::tls_hint;
use crate::reconnect::Backoff;

/// Idle connections that are kept.
const MOST_IDLE: usize = 64;

/// How long it may take to find out whether an idle connection still is one.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest time for one attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How a sink connects. Dropping a connection closes it at once.
#[async_trait]
pub(crate) trait Connector: Send + Sync {
    /// What a batch is sent over.
    type Connection: Send;

    /// Where it connects to, without secrets.
    fn address(&self) -> String;

    /// Longest time for one attempt to connect.
    fn timeout(&self) -> Duration {
        CONNECT_TIMEOUT
    }

    /// Makes a connection; dropped when that takes too long.
    ///
    /// # Errors
    /// One line: why not.
    async fn connect(&self) -> Result<Self::Connection, String>;

    /// Whether a connection that was idle for so long still is one.
    async fn is_alive(&self, connection: &mut Self::Connection, idle: Duration) -> bool;
}

/// All connections to one server.
pub(crate) struct Pool<C: Connector> {
    /// How it connects.
    pub(crate) connector: C,
    state: Mutex<State<C::Connection>>,
}

struct State<T> {
    idle: Vec<(T, Instant)>,
    backoff: Backoff,
    /// Of the last attempt to connect.
    error: Option<String>,
}

/// A connection for one batch.
pub(crate) struct Lease<'p, C: Connector> {
    pool: &'p Pool<C>,
    connection: C::Connection,
}

impl<C: Connector> Pool<C> {
    pub(crate) fn new(connector: C) -> Self {
        let state = State { idle: Vec::new(), backoff: Backoff::default(), error: None };
        Self { connector, state: Mutex::new(state) }
    }

    fn state<R>(&self, change: impl FnOnce(&mut State<C::Connection>) -> R) -> R {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Where it connects to, without secrets.
    pub(crate) fn address(&self) -> String {
        self.connector.address()
    }

    /// What is idle, for the caller to close.
    pub(crate) fn take_idle(&self) -> Vec<C::Connection> {
        let idle = self.state(|state| std::mem::take(&mut state.idle));
        idle.into_iter().map(|(connection, _)| connection).collect()
    }

    /// An idle connection that is alive, or a new one. After a failure the next attempt waits for its time.
    ///
    /// # Errors
    /// One line: why there is none before the deadline.
    pub(crate) async fn lease(&self, deadline: Instant) -> Result<Lease<'_, C>, String> {
        while let Some((mut connection, since)) = self.state(|state| state.idle.pop()) {
            let answer_by = deadline.min(Instant::now() + ANSWER_TIMEOUT);
            let alive = self.connector.is_alive(&mut connection, since.elapsed());
            if let Ok(true) = timeout_at(answer_by, alive).await {
                return Ok(Lease { pool: self, connection });
            }
        }
        if let Some(at) = self.state(|state| state.backoff.not_before()) {
            if at >= deadline {
                sleep_until(deadline).await;
                return Err(self.late());
            }
            sleep_until(at).await;
        }
        let patience = self.connector.timeout();
        let connect_by = deadline.min(Instant::now() + patience);
        let connected = match timeout_at(connect_by, self.connector.connect()).await {
            Ok(connected) => connected.map_err(|error| format!("{error}{}", tls_hint(&error))),
            Err(_) => Err(format!("no connection within {patience:?}")),
        };
        self.state(|state| match &connected {
            Ok(_) => {
                state.backoff.succeeded();
                state.error = None;
            }
            Err(error) => {
                state.backoff.failed();
                state.error = Some(error.clone());
            }
        });
        match connected {
            Ok(connection) => Ok(Lease { pool: self, connection }),
            Err(_) if Instant::now() >= deadline => Err(self.late()),
            Err(error) => Err(format!("{}: {error}", self.address())),
        }
    }

    fn late(&self) -> String {
        let error = self.state(|state| state.error.clone());
        let why = error.map(|error| format!("; the last attempt: {error}")).unwrap_or_default();
        format!("{}: no connection before the deadline{why}", self.address())
    }
}

impl<C: Connector> Lease<'_, C> {
    /// Nothing is unanswered on it: others may use it.
    pub(crate) fn give_back(self) {
        self.pool.state(|state| {
            if state.idle.len() < MOST_IDLE {
                state.idle.push((self.connection, Instant::now()));
            }
        });
    }
}

impl<C: Connector> Deref for Lease<'_, C> {
    type Target = C::Connection;

    fn deref(&self) -> &C::Connection {
        &self.connection
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Numbers its connections; the first `refusals` attempts fail, and only even connections stay alive.
    #[derive(Default)]
    struct Numbers {
        attempts: AtomicU32,
        refusals: u32,
    }

    #[async_trait]
    impl Connector for Numbers {
        type Connection = u32;

        fn address(&self) -> String {
            "h:1".to_owned()
        }

        async fn connect(&self) -> Result<u32, String> {
            let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
            if attempt < self.refusals { Err("refused".to_owned()) } else { Ok(attempt) }
        }

        async fn is_alive(&self, connection: &mut u32, idle: Duration) -> bool {
            idle.is_zero() || (*connection).is_multiple_of(2)
        }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    async fn lease(pool: &Pool<Numbers>) -> Lease<'_, Numbers> {
        pool.lease(soon()).await.unwrap_or_else(|error| panic!("{error}"))
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_was_given_back_and_is_alive_is_lent_again() {
        let pool = Pool::new(Numbers::default());
        lease(&pool).await.give_back();
        {
            let (zero, one) = (lease(&pool).await, lease(&pool).await);
            assert_eq!((*zero, *one), (0, 1));
            one.give_back();
        }
        assert_eq!(*lease(&pool).await, 1, "it was not idle at all, and 0 is gone");
        lease(&pool).await.give_back();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(*lease(&pool).await, 2, "it says that it is alive");
        lease(&pool).await.give_back();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(*lease(&pool).await, 4, "3 is dead");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_refusal_the_next_attempt_waits() {
        let pool = Pool::new(Numbers { refusals: 1, ..Numbers::default() });
        assert_eq!(pool.lease(soon()).await.err().unwrap(), "h:1: refused");
        let began = Instant::now();
        let error = pool.lease(began + Duration::from_millis(10)).await.err().unwrap();
        assert!(error.contains("before the deadline; the last attempt: refused"), "{error}");
        assert_eq!(pool.connector.attempts.load(Ordering::Relaxed), 1);
        assert!(pool.lease(soon()).await.is_ok());
        assert!(began.elapsed() >= Duration::from_millis(50));
    }
}
