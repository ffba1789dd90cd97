//! One queue to a sink that is up, beside another with a backlog of its own: with the other's sink up, gone and silent,
//! and beside none. PostgreSQL and SQLite.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use outbox_relay::settings::{Backoff, Envelope, QueueSettings};
use outbox_relay::{Relay, RelayParts, SinkBinding};
use outbox_sinks::{Answer, Message, Sink, SinkConfig};
use outbox_store::{Published, QueuePolicy, Store};
use outbox_sweeper::SweeperSettings;
use outbox_tests::brokers::redis::Redis;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::drain::open_sqlite;
use crate::engine::{Database, Engine, Server};
use crate::in_process;
use crate::report::Report;
use crate::workload::Workload;

const MEASURED: &str = "measured";
const OTHER: &str = "other";
const GIVE_UP: Duration = Duration::from_secs(300);

/// What the other queue's sink is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    /// There are no other rows.
    Nothing,
    Up,
    /// Nobody listens.
    Gone,
    /// Somebody listens and never answers.
    Silent,
}

impl Beside {
    const ALL: [Self; 4] = [Self::Nothing, Self::Up, Self::Gone, Self::Silent];
}

/// Accepts everything and counts it.
struct Counter(watch::Sender<u64>);

#[async_trait]
impl Sink for Counter {
    fn kind(&self) -> &'static str {
        "counter"
    }

    fn needs_destination(&self) -> bool {
        false
    }

    async fn publish(&self, batch: &[Message<'_>], _deadline: tokio::time::Instant) -> Vec<Answer> {
        self.0.send_modify(|count| *count += batch.len() as u64);
        vec![Answer::Acked { receipt: None }; batch.len()]
    }

    async fn check(&self, _deadline: tokio::time::Instant) -> Result<String, String> {
        Ok("counts".to_owned())
    }

    async fn close(&self) {}
}

/// Measures.
pub(crate) async fn run(engine: Engine, work: Workload) -> Result<Report> {
    let server = Server::start(engine)?;
    let mut rates = Beside::ALL.map(|_| Vec::new());
    for round in 0..work.runs {
        for (beside, rates) in Beside::ALL.iter().zip(&mut rates) {
            let rate = measure(&server, &work, *beside).await?;
            eprintln!("run {}, {beside:?}: {rate:.0}/s", round + 1);
            rates.push(rate);
        }
    }
    let mut report = Report::new(format!(
        "{engine:?}: {} rows of {} B over {} keys beside as many of another queue, batch {}, {} runs",
        work.rows, work.payload, work.keys, work.batch, work.runs
    ));
    let [nothing, up, gone, silent] = &rates;
    for (name, rates) in [("other gone", gone), ("other silent", silent)] {
        report.ratio(format!("{name} / no other rows"), rates, nothing);
        report.ratio(format!("{name} / other up"), rates, up);
    }
    let names = ["no other rows", "other up", "other gone", "other silent"];
    for (name, rates) in names.into_iter().zip(rates) {
        report.line(name, "events/s", rates);
    }
    Ok(report)
}

/// Events of the measured queue a second, until the last of them is acknowledged.
async fn measure(server: &Server, work: &Workload, beside: Beside) -> Result<f64> {
    let database = server.fresh_database().await?;
    let store = in_process::open(server.engine(), &database).await?;
    fill(server.engine(), &database, work, MEASURED).await?;
    if beside != Beside::Nothing {
        fill(server.engine(), &database, work, OTHER).await?;
    }
    let redis = if beside == Beside::Up { Some(Redis::start(&[])?) } else { None };
    // Connections wait here, accepted by the system and by nobody else.
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let silent = listener.local_addr()?.port();
    if beside == Beside::Gone {
        drop(listener);
    }
    let other = other_sink(redis.as_ref().map_or(silent, Redis::port))?;
    let counter = Arc::new(Counter(watch::Sender::new(0)));
    let mut counted = counter.0.subscribe();
    let relay = relay(&store, work, counter, other)?;
    let health = relay.health();
    let shutdown = CancellationToken::new();
    let start = Instant::now();
    let running = tokio::spawn(relay.run(shutdown.clone()));
    let all = counted.wait_for(|count| *count >= u64::from(work.rows));
    let seen = tokio::time::timeout(GIVE_UP, all).await.context("the queue was not drained")?;
    seen.context("the sink is gone")?;
    let elapsed = start.elapsed();
    if beside == Beside::Gone {
        let snapshot = health.snapshot();
        ensure!(
            !snapshot.is_ready() && !snapshot.sinks[OTHER].up,
            "readiness does not name it: {snapshot:?}"
        );
    }
    shutdown.cancel();
    running.await??;
    store.close().await;
    Ok(f64::from(work.rows) / elapsed.as_secs_f64())
}

fn other_sink(port: u16) -> Result<Arc<dyn Sink>> {
    let url = format!("redis://127.0.0.1:{port}");
    let config = serde_json::json!({ "type": "redis", "url": url, "create": true });
    let config: SinkConfig = serde_json::from_value(config)?;
    outbox_sinks::build(OTHER, &config).map_err(anyhow::Error::msg)
}

fn relay(
    store: &Arc<dyn Store>,
    work: &Workload,
    counter: Arc<Counter>,
    other: Arc<dyn Sink>,
) -> Result<Relay> {
    let queue = |name: &str| {
        let mut policy = QueuePolicy::named(name);
        policy.batch = work.batch;
        policy.published = Published::Delete;
        QueueSettings {
            policy: Arc::new(policy),
            sink: name.to_owned(),
            destination: Some("events".to_owned()),
            publish_timeout: Duration::from_secs(20),
            retry: Backoff::default(),
        }
    };
    let bind = |sink| SinkBinding { sink, envelope: Envelope::Raw };
    let parts = RelayParts {
        name: "bench".to_owned(),
        store: Arc::clone(store),
        queues: vec![queue(MEASURED), queue(OTHER)],
        sinks: BTreeMap::from([(MEASURED.to_owned(), bind(counter)), (OTHER.to_owned(), bind(other))]),
        sweeper: SweeperSettings { interval: Duration::from_secs(5), checkpoint: None },
        shutdown_grace: Duration::from_secs(4),
    };
    Relay::new(parts).map_err(anyhow::Error::msg)
}

async fn fill(engine: Engine, database: &Database, work: &Workload, queue: &str) -> Result<()> {
    let (rows, keys, pad) = (work.rows, work.keys, work.pad());
    match engine {
        Engine::Postgres => {
            let mut db = PgConnection::connect(&database.url).await?;
            let sql = format!(
                "INSERT INTO outbox_tasks (queue, aggregate_type, aggregate_id, payload)
                 SELECT '{queue}', 'Order', (i::bigint * 7919 % {keys})::text,
                   json_build_object('n', i, 'pad', repeat('x', {pad}))
                 FROM generate_series(1, {rows}) i"
            );
            sqlx::query(AssertSqlSafe(sql)).execute(&mut db).await?;
            sqlx::raw_sql("VACUUM ANALYZE outbox_tasks").execute(&mut db).await?;
        }
        Engine::Sqlite => {
            let mut db = open_sqlite(&database.url).await?;
            let sql = format!(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
                 INSERT INTO outbox_tasks (queue, aggregate_type, aggregate_id, payload)
                 SELECT '{queue}', 'Order', CAST(i * 7919 % {keys} AS TEXT),
                   json_object('n', i, 'pad', printf('%.*c', {pad}, 'x'))
                 FROM n"
            );
            sqlx::query(AssertSqlSafe(sql)).execute(&mut db).await?;
        }
    }
    Ok(())
}
