//! One blocked key with many followers: what it costs the other keys while its followers are met, held and released.
//!
//! Each phase drains the same number of rows of other keys twice on a database of its own: with the key blocked, and
//! with the same backlog unblocked. PostgreSQL and SQLite.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use async_trait::async_trait;
use outbox_relay::Relay;
use outbox_sinks::{Answer, Cause, Message, Sink};
use outbox_store::Store;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::drain::open_sqlite;
use crate::engine::{Database, Engine, Server};
use crate::in_process;
use crate::report::Report;
use crate::workload::Workload;

const HOT: &str = "hot";
/// Several retries come while a phase lasts.
const RETRY: Duration = Duration::from_millis(500);
const GIVE_UP: Duration = Duration::from_secs(300);

/// Accepts everything, but the hot key only while the gate is open.
struct Gate {
    open: bool,
    others: watch::Sender<u64>,
    hot: Mutex<Hot>,
}

/// What was seen of the hot key.
#[derive(Clone, Copy, Default)]
struct Hot {
    refused: u64,
    delivered: u64,
    last_seq: i64,
    inversions: u64,
}

impl Gate {
    fn new(open: bool) -> Arc<Self> {
        Arc::new(Self { open, others: watch::Sender::new(0), hot: Mutex::default() })
    }

    fn answer_hot(&self, message: &Message<'_>, refused_before: &mut bool) -> Answer {
        let mut hot = self.hot.lock().unwrap_or_else(PoisonError::into_inner);
        if *refused_before {
            return Answer::Unsent;
        }
        if !self.open {
            *refused_before = true;
            hot.refused += 1;
            return Answer::refused(Cause::Unclear, "the gate is closed");
        }
        hot.inversions += u64::from(message.event.seq < hot.last_seq);
        hot.last_seq = message.event.seq;
        hot.delivered += 1;
        Answer::Acked { receipt: None }
    }

    fn hot(&self) -> Hot {
        *self.hot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Sink for Gate {
    fn kind(&self) -> &'static str {
        "gate"
    }

    fn needs_destination(&self) -> bool {
        false
    }

    async fn publish(&self, batch: &[Message<'_>], _deadline: tokio::time::Instant) -> Vec<Answer> {
        let mut refused = false;
        let mut others = 0;
        let answers = batch.iter().map(|message| {
            if message.event.aggregate_id == HOT {
                return self.answer_hot(message, &mut refused);
            }
            others += 1;
            Answer::Acked { receipt: None }
        });
        let answers = answers.collect();
        self.others.send_modify(|count| *count += others);
        answers
    }

    async fn check(&self, _deadline: tokio::time::Instant) -> Result<String, String> {
        Ok("a gate".to_owned())
    }

    async fn close(&self) {}
}

/// Rates of the other keys in a phase, events a second.
#[derive(Default)]
struct Rates {
    blocked: Vec<f64>,
    unblocked: Vec<f64>,
}

/// Measures.
pub(crate) async fn run(engine: Engine, work: Workload) -> Result<Report> {
    let server = Server::start(engine)?;
    let mut phases = [Rates::default(), Rates::default(), Rates::default()];
    for round in 0..work.runs {
        for (phase, rate) in phases.iter_mut().zip(blocked_round(&server, &work).await?) {
            phase.blocked.push(rate);
        }
        for (phase, rate) in phases.iter_mut().zip(unblocked_round(&server, &work).await?) {
            phase.unblocked.push(rate);
        }
        let last = |rates: &Vec<f64>| rates.last().copied().unwrap_or_default();
        for (name, phase) in ["met", "held", "released"].iter().zip(&phases) {
            let (blocked, unblocked) = (last(&phase.blocked), last(&phase.unblocked));
            eprintln!("run {}, {name}: {blocked:.0}/s blocked, {unblocked:.0}/s unblocked", round + 1);
        }
    }
    let mut report = Report::new(format!(
        "{engine:?}: {} rows of other keys beside one key with as many followers, batch {}, {} runs",
        work.rows, work.batch, work.runs
    ));
    for (name, phase) in ["met", "held", "released"].iter().zip(phases) {
        report.ratio(format!("{name}: blocked / unblocked"), &phase.blocked, &phase.unblocked);
        report.line(format!("{name}: blocked"), "events/s", phase.blocked);
        report.line(format!("{name}: unblocked"), "events/s", phase.unblocked);
    }
    Ok(report)
}

/// The key is refused while its followers are met and while it is held, then let through.
async fn blocked_round(server: &Server, work: &Workload) -> Result<[f64; 3]> {
    let database = server.fresh_database().await?;
    let store = in_process::open(server.engine(), &database).await?;
    fill(server.engine(), &database, work, true).await?;
    let met = Gate::new(false);
    let met_rate = drain_others(&store, work, &met).await?;

    park_the_rest(&store, server.engine(), &database, work).await?;
    fill(server.engine(), &database, work, false).await?;
    let held = Gate::new(false);
    let held_rate = drain_others(&store, work, &held).await?;
    let refused = met.hot().refused + held.hot().refused;
    ensure!(refused >= 3, "the head was tried {refused} times: too few retries to show anything");

    fill(server.engine(), &database, work, false).await?;
    let released = Gate::new(true);
    let released_rate = drain_others(&store, work, &released).await?;
    let rest = drain_everything(&store, work, &released).await?;
    ensure!(
        rest.delivered == u64::from(work.rows),
        "{} of the key's {} rows came",
        rest.delivered,
        work.rows
    );
    ensure!(rest.inversions == 0, "{} inversions on the released key", rest.inversions);
    store.close().await;
    Ok([met_rate, held_rate, released_rate])
}

/// The same backlogs with the gate open from the start.
async fn unblocked_round(server: &Server, work: &Workload) -> Result<[f64; 3]> {
    let database = server.fresh_database().await?;
    let store = in_process::open(server.engine(), &database).await?;
    let mut rates = [0.0; 3];
    for (phase, rate) in rates.iter_mut().enumerate() {
        fill(server.engine(), &database, work, phase == 0).await?;
        let gate = Gate::new(true);
        *rate = drain_others(&store, work, &gate).await?;
        drain_everything(&store, work, &gate).await?;
    }
    store.close().await;
    Ok(rates)
}

/// Rate of the other keys until the last of them is acknowledged.
async fn drain_others(store: &Arc<dyn Store>, work: &Workload, gate: &Arc<Gate>) -> Result<f64> {
    let shutdown = CancellationToken::new();
    let mut others = gate.others.subscribe();
    let start = Instant::now();
    let relay = tokio::spawn(relay(store, work, gate)?.run(shutdown.clone()));
    let all = others.wait_for(|count| *count >= u64::from(work.rows));
    let seen = tokio::time::timeout(GIVE_UP, all).await.context("the other keys were not drained")?;
    seen.context("the sink is gone")?;
    let elapsed = start.elapsed();
    shutdown.cancel();
    relay.await??;
    Ok(f64::from(work.rows) / elapsed.as_secs_f64())
}

async fn drain_everything(store: &Arc<dyn Store>, work: &Workload, gate: &Arc<Gate>) -> Result<Hot> {
    relay(store, work, gate)?.run_once(CancellationToken::new()).await?;
    Ok(gate.hot())
}

/// Followers that the first phase has not come to: all are parked before the second begins.
async fn park_the_rest(
    store: &Arc<dyn Store>,
    engine: Engine,
    database: &Database,
    work: &Workload,
) -> Result<()> {
    let gate = Gate::new(false);
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(relay(store, work, &gate)?.run(shutdown.clone()));
    let end = Instant::now() + GIVE_UP;
    while ready_rows(engine, database).await? > 0 {
        if Instant::now() > end {
            bail!("followers are still not parked after {GIVE_UP:?}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    shutdown.cancel();
    running.await?
}

async fn ready_rows(engine: Engine, database: &Database) -> Result<i64> {
    let sql = "SELECT count(*) FROM outbox_tasks WHERE settled_at IS NULL AND available_at IS NULL";
    Ok(match engine {
        Engine::Postgres => {
            sqlx::query_scalar(sql).fetch_one(&mut PgConnection::connect(&database.url).await?).await?
        }
        Engine::Sqlite => sqlx::query_scalar(sql).fetch_one(&mut open_sqlite(&database.url).await?).await?,
    })
}

fn relay(store: &Arc<dyn Store>, work: &Workload, gate: &Arc<Gate>) -> Result<Relay> {
    in_process::relay(store, work.batch, RETRY, Arc::clone(gate) as _)
}

/// Rows of other keys; with `hot`, a row of the one key before each of them.
async fn fill(engine: Engine, database: &Database, work: &Workload, hot: bool) -> Result<()> {
    let (rows, keys, pad, step) = (work.rows, work.keys, work.pad(), if hot { 2 } else { 1 });
    let key = format!("CASE WHEN {step} = 2 AND i % 2 = 1 THEN '{HOT}' ELSE ");
    match engine {
        Engine::Postgres => {
            let mut db = PgConnection::connect(&database.url).await?;
            let sql = format!(
                "INSERT INTO outbox_tasks (aggregate_type, aggregate_id, payload)
                 SELECT 'Order', {key} (i::bigint * 7919 % {keys})::text END,
                   json_build_object('n', i, 'pad', repeat('x', {pad}))
                 FROM generate_series(1, {rows} * {step}) i"
            );
            sqlx::query(AssertSqlSafe(sql)).execute(&mut db).await?;
            sqlx::raw_sql("VACUUM ANALYZE outbox_tasks").execute(&mut db).await?;
        }
        Engine::Sqlite => {
            let mut db = open_sqlite(&database.url).await?;
            let sql = format!(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows} * {step})
                 INSERT INTO outbox_tasks (aggregate_type, aggregate_id, payload)
                 SELECT 'Order', {key} CAST(i * 7919 % {keys} AS TEXT) END,
                   json_object('n', i, 'pad', printf('%.*c', {pad}, 'x'))
                 FROM n"
            );
            sqlx::query(AssertSqlSafe(sql)).execute(&mut db).await?;
        }
    }
    Ok(())
}
