//! Applications: writers that insert outbox rows in transactions, some rolled back, some committed long after they
//! drew their seq. Writers of a key are serialised: each key belongs to one writer.

use std::collections::HashMap;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sqlx::{Connection, PgConnection, SqliteConnection};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::checker::{Attempt, Fate};

/// How the writers write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// What its keys begin with: two loads beside each other must not share a key.
    pub(crate) prefix: &'static str,
    pub(crate) keys: u64,
    pub(crate) writers: u64,
    /// Share of transactions that are rolled back.
    pub(crate) rollbacks: f64,
    /// Share of transactions that commit late, and how late at most.
    pub(crate) late: f64,
    pub(crate) late_at_most: Duration,
    /// Pause between two transactions of a writer: the offered load.
    pub(crate) pause: Duration,
    pub(crate) seed: u64,
}

/// One transaction, decided before it is run.
struct Transaction {
    events: Vec<(Uuid, String)>,
    fate: Fate,
    late: Option<Duration>,
}

fn draw(rng: &mut StdRng, load: &Load, writer: u64) -> Transaction {
    let own_keys = load.keys / load.writers;
    let events = (0..rng.random_range(1..=4))
        .map(|_| {
            (
                Uuid::now_v7(),
                format!("{}{}", load.prefix, writer + load.writers * rng.random_range(0..own_keys)),
            )
        })
        .collect();
    let fate = if rng.random_bool(load.rollbacks) { Fate::RolledBack } else { Fate::Committed };
    let late = rng.random_bool(load.late).then(|| load.late_at_most.mul_f64(rng.random_range(0.1..=1.0)));
    Transaction { events, fate, late }
}

/// Remembers attempts and numbers them per key.
#[derive(Default)]
struct Journal {
    attempts: Vec<Attempt>,
    next: HashMap<String, u64>,
}

impl Journal {
    fn note(&mut self, transaction: Transaction, fate: Fate) {
        for (id, key) in transaction.events {
            let next = self.next.entry(key.clone()).or_default();
            self.attempts.push(Attempt { id, key, position: *next, fate });
            *next += 1;
        }
    }
}

fn fate_of(planned: Fate, end: Result<(), sqlx::Error>) -> Fate {
    match (planned, end) {
        (Fate::Committed, Err(_)) => Fate::Unknown,
        (planned, _) => planned,
    }
}

/// Runs the load until `stop`; returns every attempt.
pub(crate) async fn write_postgres(url: &str, load: Load, stop: CancellationToken) -> Vec<Attempt> {
    let mut tasks = JoinSet::new();
    for writer in 0..load.writers {
        let (url, stop) = (url.to_owned(), stop.clone());
        tasks.spawn(async move {
            let mut connection = PgConnection::connect(&url).await.expect("a writer connects");
            let mut rng = StdRng::seed_from_u64(load.seed ^ writer);
            let mut journal = Journal::default();
            while !stop.is_cancelled() {
                let plan = draw(&mut rng, &load, writer);
                let end = run_postgres(&mut connection, &plan).await;
                let broken = end.is_err();
                let fate = fate_of(plan.fate, end);
                journal.note(plan, fate);
                tokio::time::sleep(load.pause).await;
                // The server was away: this writer goes on when it is back.
                if broken && let Ok(fresh) = PgConnection::connect(&url).await {
                    connection = fresh;
                }
            }
            journal.attempts
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

async fn run_postgres(connection: &mut PgConnection, plan: &Transaction) -> Result<(), sqlx::Error> {
    let mut tx = connection.begin().await?;
    for (id, key) in &plan.events {
        sqlx::query(
            "INSERT INTO outbox_tasks (id, aggregate_type, aggregate_id, event_type, payload)
             VALUES ($1, 'Order', $2, 'Changed', json_build_object('key', $2::text))",
        )
        .bind(id)
        .bind(key)
        .execute(&mut *tx)
        .await?;
    }
    if let Some(late) = plan.late {
        tokio::time::sleep(late).await;
    }
    match plan.fate {
        Fate::RolledBack => tx.rollback().await,
        _ => tx.commit().await,
    }
}

/// Runs the load until `stop`; returns every attempt.
pub(crate) async fn write_sqlite(url: &str, load: Load, stop: CancellationToken) -> Vec<Attempt> {
    let mut tasks = JoinSet::new();
    for writer in 0..load.writers {
        let (url, stop) = (url.to_owned(), stop.clone());
        tasks.spawn(async move {
            let mut connection = SqliteConnection::connect(&url).await.expect("a writer connects");
            sqlx::query("PRAGMA busy_timeout = 60000").execute(&mut connection).await.expect("a pragma");
            let mut rng = StdRng::seed_from_u64(load.seed ^ writer);
            let mut journal = Journal::default();
            while !stop.is_cancelled() {
                let plan = draw(&mut rng, &load, writer);
                let end = run_sqlite(&mut connection, &plan).await;
                let fate = fate_of(plan.fate, end);
                journal.note(plan, fate);
                tokio::time::sleep(load.pause).await;
            }
            journal.attempts
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

async fn run_sqlite(connection: &mut SqliteConnection, plan: &Transaction) -> Result<(), sqlx::Error> {
    let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
    for (id, key) in &plan.events {
        sqlx::query(
            "INSERT INTO outbox_tasks (id, aggregate_type, aggregate_id, event_type, payload)
             VALUES (?, 'Order', ?, 'Changed', ?)",
        )
        .bind(id.to_string())
        .bind(key)
        .bind(format!(r#"{{"key": "{key}"}}"#))
        .execute(&mut *tx)
        .await?;
    }
    if let Some(late) = plan.late {
        tokio::time::sleep(late).await;
    }
    match plan.fate {
        Fate::RolledBack => tx.rollback().await,
        _ => tx.commit().await,
    }
}
