use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_store::StoreError;
use rand::Rng;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::Mutex;

use crate::error::{Error, is_busy};
use crate::options::Synchronous;

/// The first wait for a write lock is at most this long, and each further one up to twice as long …
const FIRST_BACKOFF: Duration = Duration::from_millis(1);
/// … until this.
const LONGEST_BACKOFF: Duration = Duration::from_millis(20);

/// The shortest pause between two write transactions while an application writes too. It is once to twice as long as the
/// last transaction took where that is longer: an application that found the lock taken looks again ever more rarely,
/// and would miss short pauses between long transactions again and again. How long is left to chance, because SQLite's
/// own waiting has a beat of 25 and 100 ms, which must not be ours too.
const SHORTEST_PAUSE: Duration = Duration::from_millis(3);
/// The longest one.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// An application that has not committed for so long is not writing.
const BESIDE_OTHERS: Duration = Duration::from_secs(1);

/// The one connection that writes.
///
/// Work runs on a blocking thread and to its end, whatever becomes of the future that waits for it: a cancelled call
/// cannot leave a transaction open.
#[derive(Clone)]
pub(crate) struct Writer {
    slot: Arc<Mutex<Slot>>,
}

/// The writing connection, as the one who holds it uses it.
pub(crate) struct Slot {
    conn: Option<Connection>,
    busy_timeout: Duration,
    synchronous: Synchronous,
    pragma_synchronous: Option<Synchronous>,
    pace: Pace,
}

impl Writer {
    pub(crate) fn new(conn: Connection, busy_timeout: Duration, synchronous: Synchronous) -> Self {
        let slot = Slot {
            conn: Some(conn),
            busy_timeout,
            synchronous,
            pragma_synchronous: None,
            pace: Pace::default(),
        };
        Self { slot: Arc::new(Mutex::new(slot)) }
    }

    /// Runs `work` alone on the connection.
    pub(crate) async fn run<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Slot) -> Result<T, Error> + Send + 'static,
    {
        let mut slot = Arc::clone(&self.slot).lock_owned().await;
        let pause = slot.pace.pause(Instant::now(), rand::rng().random_range(1.0..=2.0));
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        spawn(move || work(&mut slot)).await
    }

    /// Runs `work` in a transaction as durable as the options say.
    pub(crate) async fn transaction<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T, Error> + Send + 'static,
    {
        self.run(move |slot| slot.transaction(slot.synchronous, work)).await
    }

    /// A number that changes when another connection commits, and not when this one does; `None` while this one is at
    /// work. Costs about a microsecond.
    pub(crate) fn data_version(&self) -> Option<Result<i64, Error>> {
        let slot = self.slot.try_lock().ok()?;
        Some(slot.conn().and_then(data_version))
    }

    pub(crate) async fn close(&self) {
        self.slot.lock().await.conn = None;
    }
}

/// Runs blocking `work` on a thread for it.
pub(crate) async fn spawn<T, F>(work: F) -> Result<T, StoreError>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, Error> + Send + 'static,
{
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => Ok(result?),
        Err(error) => Err(StoreError::Failed(error.into())),
    }
}

impl Slot {
    pub(crate) fn conn(&self) -> Result<&Connection, Error> {
        self.conn.as_ref().ok_or_else(|| Error::unavailable("the store is closed"))
    }

    /// Runs `work` between BEGIN IMMEDIATE and COMMIT; an error rolls everything back.
    pub(crate) fn transaction<T>(
        &mut self,
        synchronous: Synchronous,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.set_synchronous(synchronous)?;
        let conn = self.conn.as_ref().ok_or_else(|| Error::unavailable("the store is closed"))?;
        let transaction =
            retried(self.busy_timeout, || Transaction::new_unchecked(conn, TransactionBehavior::Immediate))?;
        self.pace.began(data_version(&transaction)?, Instant::now());
        let result = work(&transaction).and_then(|value| Ok(transaction.commit().map(|()| value)?));
        self.pace.ended(Instant::now());
        result
    }

    /// SQLite refuses to change it inside a transaction.
    fn set_synchronous(&mut self, synchronous: Synchronous) -> Result<(), Error> {
        if self.pragma_synchronous == Some(synchronous) {
            return Ok(());
        }
        let conn = self.conn()?;
        conn.execute_batch(match synchronous {
            Synchronous::Normal => "PRAGMA synchronous = NORMAL",
            Synchronous::Full => "PRAGMA synchronous = FULL",
        })?;
        self.pragma_synchronous = Some(synchronous);
        Ok(())
    }
}

pub(crate) fn data_version(conn: &Connection) -> Result<i64, Error> {
    Ok(conn.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?)
}

/// Tries until the lock is free or the time is up. SQLite's own waiting has no jitter, so that two who wait keep
/// meeting, and it counts nothing.
pub(crate) fn retried<T>(
    busy_timeout: Duration,
    mut attempt: impl FnMut() -> Result<T, rusqlite::Error>,
) -> Result<T, Error> {
    let started = Instant::now();
    let mut backoff = FIRST_BACKOFF;
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && started.elapsed() < busy_timeout => {
                metrics::counter!("outbox_lock_retries_total").increment(1);
                std::thread::sleep(rand::rng().random_range(backoff / 2..=backoff));
                backoff = (backoff * 2).min(LONGEST_BACKOFF);
            }
            result => return Ok(result?),
        }
    }
}

/// Leaves room for others who write.
#[derive(Default)]
struct Pace {
    version: Option<i64>,
    others_committed: Option<Instant>,
    last_began: Option<Instant>,
    last_ended: Option<Instant>,
}

impl Pace {
    /// How long to wait before the next transaction: `stretch` times as long as the last one took.
    fn pause(&self, now: Instant, stretch: f64) -> Duration {
        let beside_others = self.others_committed.is_some_and(|at| now.duration_since(at) < BESIDE_OTHERS);
        match (self.last_began, self.last_ended) {
            (Some(began), Some(ended)) if beside_others => {
                let stretched = ended.duration_since(began).mul_f64(stretch);
                stretched.clamp(SHORTEST_PAUSE, LONGEST_PAUSE).saturating_sub(now.duration_since(ended))
            }
            _ => Duration::ZERO,
        }
    }

    fn began(&mut self, version: i64, now: Instant) {
        if self.version.is_some_and(|last| last != version) {
            self.others_committed = Some(now);
        }
        self.version = Some(version);
        self.last_began = Some(now);
    }

    fn ended(&mut self, now: Instant) {
        self.last_ended = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_pauses_only_while_others_commit() {
        let start = Instant::now();
        let mut pace = Pace::default();
        assert_eq!(pace.pause(start, 1.0), Duration::ZERO);
        pace.began(1, start);
        pace.ended(start);
        pace.began(1, start);
        pace.ended(start);
        assert_eq!(pace.pause(start, 1.0), Duration::ZERO, "alone");
        pace.began(2, start);
        pace.ended(start);
        assert_eq!(pace.pause(start, 1.0), SHORTEST_PAUSE);
        let ms = Duration::from_millis;
        assert_eq!(pace.pause(start + ms(1), 2.0), SHORTEST_PAUSE - ms(1));
        assert_eq!(pace.pause(start + SHORTEST_PAUSE, 1.0), Duration::ZERO, "it has paused already");
        pace.ended(start + ms(20));
        assert_eq!(pace.pause(start + ms(25), 1.0), ms(15), "as long as the transaction took");
        assert_eq!(pace.pause(start + ms(25), 1.5), ms(25), "and half as long again");
        pace.ended(start + ms(700));
        assert_eq!(pace.pause(start + ms(700), 1.0), LONGEST_PAUSE);
        let later = start + BESIDE_OTHERS;
        pace.began(2, later);
        pace.ended(later);
        assert_eq!(pace.pause(later, 1.0), Duration::ZERO, "alone again");
    }
}
