//! Applications that insert events, and sinks that tell what was delivered.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use async_trait::async_trait;
use outbox_sinks::{Answer, Cause, Message, Sink};
use sqlx::{Connection, PgConnection, SqliteConnection};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::drain::open_sqlite;
use crate::engine::Engine;

/// One connection of an application.
pub(crate) enum Writer {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Writer {
    pub(crate) async fn connect(engine: Engine, url: &str) -> Result<Self> {
        Ok(match engine {
            Engine::Postgres => Self::Postgres(PgConnection::connect(url).await?),
            Engine::Sqlite => Self::Sqlite(open_sqlite(url).await?),
        })
    }

    /// Commits one event.
    pub(crate) async fn insert(&mut self, id: Uuid, key: u32, payload: &str) -> Result<()> {
        match self {
            Self::Postgres(db) => {
                let sql = "INSERT INTO outbox_tasks (id, aggregate_type, aggregate_id, payload) \
                           VALUES ($1, 'Order', $2, $3::json)";
                sqlx::query(sql).bind(id).bind(key.to_string()).bind(payload).execute(db).await?;
            }
            Self::Sqlite(db) => {
                let sql = "INSERT INTO outbox_tasks (id, aggregate_type, aggregate_id, payload) \
                           VALUES (?1, 'Order', ?2, ?3)";
                sqlx::query(sql).bind(id.to_string()).bind(key.to_string()).bind(payload).execute(db).await?;
            }
        }
        Ok(())
    }

    /// Transactions that the server has committed in this database, this session's own included.
    pub(crate) async fn transactions(&mut self) -> Result<Option<i64>> {
        let sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
        match self {
            Self::Postgres(db) => Ok(Some(sqlx::query_scalar(sql).fetch_one(db).await?)),
            Self::Sqlite(_) => Ok(None),
        }
    }
}

/// Producers on connections of their own, one event a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Producers {
    pub(crate) engine: Engine,
    pub(crate) url: String,
    pub(crate) connections: u32,
    pub(crate) keys: u32,
    pub(crate) payload: String,
    /// Events a second of all together, whether or not the database keeps up; `None`: as fast as it goes.
    pub(crate) rate: Option<u32>,
}

impl Producers {
    /// Inserts until told to stop; returns how long each commit took, sorted, in milliseconds.
    pub(crate) async fn run(self, stop: CancellationToken, log: Arc<Log>) -> Result<Vec<f64>> {
        let mut tasks = JoinSet::new();
        for _ in 0..self.connections {
            tasks.spawn(self.clone().produce(stop.clone(), Arc::clone(&log)));
        }
        let mut waits_ms = Vec::new();
        for produced in tasks.join_all().await {
            waits_ms.extend(produced?);
        }
        waits_ms.sort_by(f64::total_cmp);
        Ok(waits_ms)
    }

    async fn produce(self, stop: CancellationToken, log: Arc<Log>) -> Result<Vec<f64>> {
        let mut writer = Writer::connect(self.engine, &self.url).await?;
        let mut ticks = self.rate.map(|rate| {
            let mut ticks = interval(Duration::from_secs(1) * self.connections / rate.max(1));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            ticks
        });
        let mut waits_ms = Vec::new();
        while !stop.is_cancelled() {
            if let Some(ticks) = &mut ticks {
                ticks.tick().await;
            }
            let (id, begun) = (Uuid::now_v7(), Instant::now());
            writer.insert(id, rand::random_range(0..self.keys), &self.payload).await?;
            log.committed(id);
            waits_ms.push(begun.elapsed().as_secs_f64() * 1000.0);
        }
        Ok(waits_ms)
    }
}

/// When an event was committed and when it was delivered; one may be seen before the other.
#[derive(Clone, Copy, Default)]
struct Times {
    committed: Option<Instant>,
    acked: Option<Instant>,
}

/// The times of each event.
#[derive(Default)]
pub(crate) struct Log {
    seen: Mutex<HashMap<Uuid, Times>>,
}

impl Log {
    fn committed(&self, id: Uuid) {
        self.note(|seen| seen.entry(id).or_default().committed = Some(Instant::now()));
    }

    /// How many were inserted and how many of them were delivered.
    pub(crate) fn counts(&self) -> (usize, usize) {
        self.note(|seen| {
            let committed = seen.values().filter(|times| times.committed.is_some());
            let acked = seen.values().filter(|times| times.acked.is_some());
            (committed.count(), acked.count())
        })
    }

    /// Milliseconds from commit to acknowledgement of the events committed since, sorted. An acknowledgement may come
    /// before the application knows of its commit: that is none.
    pub(crate) fn latencies_ms(&self, since: Instant) -> Vec<f64> {
        self.note(|seen| {
            let both = seen.values().filter_map(|times| times.committed.zip(times.acked));
            let mut latencies: Vec<f64> = both
                .filter(|(committed, _)| *committed >= since)
                .map(|(committed, acked)| acked.saturating_duration_since(committed).as_secs_f64() * 1000.0)
                .collect();
            latencies.sort_by(f64::total_cmp);
            latencies
        })
    }

    fn note<R>(&self, change: impl FnOnce(&mut HashMap<Uuid, Times>) -> R) -> R {
        change(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Until all that was inserted is delivered.
    pub(crate) async fn caught_up(&self) {
        loop {
            let (committed, acked) = self.counts();
            if acked >= committed {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Takes everything and notes when.
#[async_trait]
impl Sink for Log {
    fn kind(&self) -> &'static str {
        "log"
    }

    fn needs_destination(&self) -> bool {
        false
    }

    async fn publish(&self, batch: &[Message<'_>], _deadline: tokio::time::Instant) -> Vec<Answer> {
        let now = Instant::now();
        self.note(|seen| {
            for message in batch {
                seen.entry(message.event.id).or_default().acked.get_or_insert(now);
            }
        });
        vec![Answer::Acked { receipt: None }; batch.len()]
    }

    async fn check(&self, _deadline: tokio::time::Instant) -> Result<String, String> {
        Ok("a log".to_owned())
    }

    async fn close(&self) {}
}

/// Counts what it takes, and refuses one in so many at first.
pub(crate) struct Counter {
    delivered: AtomicU64,
    refused: u64,
}

impl Counter {
    /// Refuses one in so many; none at 0.
    pub(crate) fn new(refused: u64) -> Self {
        Self { delivered: AtomicU64::new(0), refused }
    }

    pub(crate) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// Events a second from now on for so many seconds.
    pub(crate) async fn rate_of(&self, seconds: u64) -> f64 {
        let (before, begun) = (self.delivered(), Instant::now());
        sleep(Duration::from_secs(seconds)).await;
        (self.delivered() - before) as f64 / begun.elapsed().as_secs_f64()
    }
}

#[async_trait]
impl Sink for Counter {
    fn kind(&self) -> &'static str {
        "counter"
    }

    fn needs_destination(&self) -> bool {
        false
    }

    async fn publish(&self, batch: &[Message<'_>], _deadline: tokio::time::Instant) -> Vec<Answer> {
        let (mut keys, mut delivered) = (HashSet::new(), 0);
        let mut answer = |message: &Message<'_>| {
            let event = message.event;
            // The rest of a refused event's key waits for it.
            if keys.contains(&event.aggregate_id) {
                return Answer::Unsent;
            }
            if event.retry_count == 0 && event.seq.unsigned_abs().checked_rem(self.refused) == Some(0) {
                keys.insert(event.aggregate_id.clone());
                return Answer::refused(Cause::Unclear, "refused once");
            }
            delivered += 1;
            Answer::Acked { receipt: None }
        };
        let answers = batch.iter().map(&mut answer).collect();
        self.delivered.fetch_add(delivered, Ordering::Relaxed);
        answers
    }

    async fn check(&self, _deadline: tokio::time::Instant) -> Result<String, String> {
        Ok("a counter".to_owned())
    }

    async fn close(&self) {}
}
