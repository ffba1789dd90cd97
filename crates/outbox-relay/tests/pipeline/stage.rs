//! A database, a scripted sink and a relay between them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_relay::settings::{Backoff, Envelope, QueueSettings};
use outbox_relay::{Relay, RelayParts, SinkBinding};
use outbox_sinks::scripted::{Controller, Delivery, Reply};
use outbox_sinks::{Sink, SinkConfig, build};
use outbox_sqlite::{SqliteOptions, SqliteStore};
use outbox_store::{QueuePolicy, Store};
use outbox_sweeper::SweeperSettings;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Long enough never to decide a test that passes.
pub(crate) const AT_MOST: Duration = Duration::from_secs(60);

/// What a test has at hand.
pub(crate) struct Stage {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) controller: Controller,
    pub(crate) queues: Vec<(QueuePolicy, Backoff, Duration)>,
    /// By queue; the scripted sink where there is none.
    pub(crate) sinks: BTreeMap<String, Arc<dyn Sink>>,
    pub(crate) grace: Duration,
    pool: SqlitePool,
    _directory: TempDir,
}

impl Stage {
    /// A migrated database and a queue called `default`.
    pub(crate) async fn new(script: impl FnMut(&Delivery) -> Reply + Send + 'static) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("outbox.db");
        let options = SqliteOptions { create: true, ..SqliteOptions::new(&path, "r1") };
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(options).await.unwrap());
        store.migrate().await.unwrap();
        let options = SqliteConnectOptions::new().filename(&path).busy_timeout(AT_MOST);
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
        let mut stage = Self {
            store,
            controller: Controller::bind(script).await.unwrap(),
            queues: Vec::new(),
            sinks: BTreeMap::new(),
            grace: AT_MOST,
            pool,
            _directory: directory,
        };
        stage.add_queue("default");
        stage
    }

    pub(crate) fn add_queue(&mut self, name: &str) {
        let retry = Backoff { initial: Duration::from_millis(5), factor: 1.0, ..Backoff::default() };
        self.queues.push((QueuePolicy::named(name), retry, Duration::from_secs(30)));
    }

    pub(crate) fn settings(&mut self, name: &str) -> &mut QueuePolicy {
        &mut self.queues.iter_mut().find(|(policy, ..)| policy.name == name).unwrap().0
    }

    pub(crate) fn publish_timeout(&mut self, timeout: Duration) {
        self.queues.iter_mut().for_each(|queue| queue.2 = timeout);
    }

    /// A relay whose queues each have a sink of their own name.
    pub(crate) fn relay(&self) -> Relay {
        let queue = |(policy, retry, publish_timeout): &(QueuePolicy, Backoff, Duration)| QueueSettings {
            policy: Arc::new(policy.clone()),
            sink: policy.name.clone(),
            destination: None,
            publish_timeout: *publish_timeout,
            retry: retry.clone(),
        };
        let sink = |name: &String| {
            let sink = self.sinks.get(name).cloned().unwrap_or_else(|| self.scripted());
            (name.clone(), SinkBinding { sink, envelope: Envelope::Raw })
        };
        let parts = RelayParts {
            name: "r1".into(),
            store: Arc::clone(&self.store),
            queues: self.queues.iter().map(queue).collect(),
            sinks: self.queues.iter().map(|(policy, ..)| sink(&policy.name)).collect(),
            sweeper: SweeperSettings { interval: Duration::from_millis(50), checkpoint: None },
            shutdown_grace: self.grace,
        };
        Relay::new(parts).unwrap()
    }

    fn scripted(&self) -> Arc<dyn Sink> {
        let config = serde_json::json!({ "type": "scripted", "address": self.controller.address() });
        build("scripted", &serde_json::from_value::<SinkConfig>(config).unwrap()).unwrap()
    }

    pub(crate) fn start(&self) -> (CancellationToken, JoinHandle<anyhow::Result<()>>) {
        let shutdown = CancellationToken::new();
        let run = tokio::spawn(self.relay().run(shutdown.clone()));
        (shutdown, run)
    }

    pub(crate) async fn insert(&self, queue: &str, key: &str, payload: &str) {
        sqlx::query(
            "INSERT INTO outbox_tasks (id, queue, aggregate_type, aggregate_id, payload) VALUES ($1, $2, 'Order', $3, $4)",
        )
        .bind(Uuid::now_v7().to_string())
        .bind(queue)
        .bind(key)
        .bind(payload)
        .execute(&self.pool)
        .await
        .unwrap();
    }

    /// A row with a destination of its own.
    pub(crate) async fn insert_to(&self, queue: &str, key: &str, destination: Option<&str>) {
        sqlx::query(
            "INSERT INTO outbox_tasks (id, queue, aggregate_type, aggregate_id, payload, destination) \
             VALUES ($1, $2, 'Order', $3, '1', $4)",
        )
        .bind(Uuid::now_v7().to_string())
        .bind(queue)
        .bind(key)
        .bind(destination)
        .execute(&self.pool)
        .await
        .unwrap();
    }

    /// How many rows of `outbox_tasks` are as the SQL condition says.
    pub(crate) async fn count(&self, condition: &'static str) -> i64 {
        let sql = format!("SELECT count(*) FROM outbox_tasks WHERE {condition}");
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&self.pool).await.unwrap()
    }

    pub(crate) async fn claims(&self) -> i64 {
        sqlx::query_scalar("SELECT count(*) FROM outbox_claims").fetch_one(&self.pool).await.unwrap()
    }

    pub(crate) async fn until_count(&self, condition: &'static str, wanted: i64) {
        until(condition, async || self.count(condition).await == wanted).await;
    }
}

/// Waits until the condition holds.
pub(crate) async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(AT_MOST, wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}
