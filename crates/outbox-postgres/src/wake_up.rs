//! Wake-up of idle claimers by notifications that producers send only while somebody sleeps (migration 0008).
//!
//! One session listens for all queues of a store and holds the locks of those that sleep. It lives in a task of its own;
//! claimers ask it for a lock and then wait for their bell.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgNotification, PgPoolOptions};
use sqlx::{Row, SqlStr};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout};

const CHANNEL: &str = "outbox_wake_up";

/// Longest time for the listener's connection and for each of its statements.
const ANSWER: Duration = Duration::from_secs(10);

/// After a failure nobody sleeps, and the next connection is tried this much later.
const RECONNECT: Duration = Duration::from_secs(5);

/// What rings while a claimer sleeps.
#[derive(Debug, Default)]
struct Bell {
    rung: Notify,
    /// The key of the lock that is held; `None` when producers do not notify.
    lock: Mutex<Option<i64>>,
}

impl Bell {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<i64>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Command {
    Arm { queue: String, bell: Arc<Bell>, armed: oneshot::Sender<bool> },
    Disarm { bell: Arc<Bell>, key: i64 },
}

/// The store's listener; starts with the first claimer that falls asleep.
pub(crate) struct WakeUp {
    options: PgConnectOptions,
    lock: SqlStr,
    unlock: SqlStr,
    commands: OnceLock<mpsc::UnboundedSender<Command>>,
}

impl WakeUp {
    pub(crate) fn new(options: PgConnectOptions, lock: SqlStr, unlock: SqlStr) -> Self {
        Self { options, lock, unlock, commands: OnceLock::new() }
    }

    fn send(&self, command: Command) {
        let commands = self.commands.get_or_init(|| {
            let (sender, receiver) = mpsc::unbounded_channel();
            let (options, lock, unlock) = (self.options.clone(), self.lock.clone(), self.unlock.clone());
            let session =
                Session { options, lock, unlock, listener: None, asleep: Vec::new(), not_before: None };
            tokio::spawn(session.run(receiver));
            sender
        });
        // Without its task nobody sleeps: claimers poll.
        let _ = commands.send(command);
    }
}

/// One claimer's side of the wake-up.
pub(crate) struct Sleeper {
    wake_up: Arc<WakeUp>,
    queue: String,
    bell: Arc<Bell>,
}

impl Sleeper {
    pub(crate) fn new(wake_up: Arc<WakeUp>, queue: &str) -> Self {
        Self { wake_up, queue: queue.to_owned(), bell: Arc::default() }
    }

    /// True while producers notify.
    pub(crate) fn is_armed(&self) -> bool {
        self.bell.lock().is_some()
    }

    /// From now on producers notify, if the answer is true: then look once more before waiting. Not while a transaction
    /// that did not notify is open, another relay sleeps on the queue, or the listener has no connection.
    pub(crate) async fn arm(&self) -> bool {
        let (armed, answer) = oneshot::channel();
        self.wake_up.send(Command::Arm { queue: self.queue.clone(), bell: Arc::clone(&self.bell), armed });
        answer.await.unwrap_or(false)
    }

    /// Producers need not notify any more: from now on nobody is to wait for the bell.
    pub(crate) fn disarm(&self) {
        let key = self.bell.lock().take();
        if let Some(key) = key {
            self.wake_up.send(Command::Disarm { bell: Arc::clone(&self.bell), key });
        }
    }

    /// Until a producer notifies or the lock is lost, after `at_most` at the latest.
    pub(crate) async fn sleep(&self, at_most: Duration) {
        let _ = timeout(at_most, self.bell.rung.notified()).await;
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.disarm();
    }
}

/// The session that holds the locks and listens.
struct Session {
    options: PgConnectOptions,
    lock: SqlStr,
    unlock: SqlStr,
    listener: Option<PgListener>,
    asleep: Vec<Arc<Bell>>,
    not_before: Option<Instant>,
}

impl Session {
    async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        loop {
            let heard = tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.obey(command).await,
                    None => return,
                },
                heard = hear(self.listener.as_mut()) => heard.map(|heard| self.ring(&heard)),
            };
            if let Err(error) = heard {
                tracing::warn!(%error, "no wake-up by notifications for now; idle queues are polled");
                self.lose_all();
            }
        }
    }

    async fn obey(&mut self, command: Command) -> Result<(), sqlx::Error> {
        match command {
            Command::Arm { queue, bell, armed } => {
                let key = self.try_lock(&queue).await;
                let got = matches!(key, Ok(Some(_)));
                *bell.lock() = key.as_ref().ok().copied().flatten();
                if got {
                    self.asleep.push(Arc::clone(&bell));
                }
                let abandoned = armed.send(got).is_err().then(|| bell.lock().take()).flatten();
                if let Some(key) = abandoned {
                    self.release(&bell, key).await?;
                }
                key.map(drop)
            }
            Command::Disarm { bell, key } => self.release(&bell, key).await,
        }
    }

    /// The queue's key if its lock was free.
    async fn try_lock(&mut self, queue: &str) -> Result<Option<i64>, sqlx::Error> {
        if self.not_before.is_some_and(|time| Instant::now() < time) {
            return Ok(None);
        }
        let query = sqlx::query(self.lock.clone()).bind(queue);
        let asked = async {
            let row = query.fetch_one(connected(&mut self.listener, &self.options).await?).await?;
            Ok(row.try_get::<bool, _>(1)?.then_some(row.try_get(0)?))
        };
        within(asked).await
    }

    async fn release(&mut self, bell: &Arc<Bell>, key: i64) -> Result<(), sqlx::Error> {
        // Without it the lock went with its session.
        if !self.asleep.iter().any(|other| Arc::ptr_eq(other, bell)) {
            return Ok(());
        }
        self.asleep.retain(|other| !Arc::ptr_eq(other, bell));
        let Some(listener) = self.listener.as_mut() else { return Ok(()) };
        within(async { sqlx::query(self.unlock.clone()).bind(key).execute(listener).await.map(drop) }).await
    }

    /// Wakes those whose key the notification names.
    fn ring(&self, heard: &PgNotification) {
        let key = heard.payload().parse().ok();
        for bell in self.asleep.iter().filter(|bell| *bell.lock() == key) {
            bell.rung.notify_one();
        }
    }

    /// The locks went with the session: everybody wakes up and looks.
    fn lose_all(&mut self) {
        self.listener = None;
        self.not_before = Some(Instant::now() + RECONNECT);
        for bell in self.asleep.drain(..) {
            *bell.lock() = None;
            bell.rung.notify_one();
        }
    }
}

async fn connected<'a>(
    listener: &'a mut Option<PgListener>,
    options: &PgConnectOptions,
) -> Result<&'a mut PgListener, sqlx::Error> {
    if listener.is_none() {
        let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options.clone());
        let mut fresh = PgListener::connect_with(&pool).await?;
        fresh.listen(CHANNEL).await?;
        *listener = Some(fresh);
    }
    listener.as_mut().ok_or(sqlx::Error::WorkerCrashed)
}

/// The next notification; an error when the connection is lost, and never without one.
async fn hear(listener: Option<&mut PgListener>) -> Result<PgNotification, sqlx::Error> {
    match listener {
        Some(listener) => listener.try_recv().await?.ok_or(sqlx::Error::PoolClosed),
        None => std::future::pending().await,
    }
}

async fn within<T>(asked: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, sqlx::Error> {
    timeout(ANSWER, asked).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}
