//! What an operator does at night, by the commands: a key blocked by a FAILED row, a queue paused, a database away.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use outbox_sinks::scripted::{Controller, Reply};
use outbox_tests::postgres::{Options, Postgres};

use crate::stage::{Engine, Stage};

const SOON: Duration = Duration::from_secs(30);
const UNSETTLED: &str = "SELECT count(*) FROM outbox_tasks WHERE settled_at IS NULL";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_key_is_operated_on_postgres() -> Result<()> {
    blocked_key(Engine::Postgres).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_key_is_operated_on_sqlite() -> Result<()> {
    blocked_key(Engine::Sqlite).await
}

fn play(sink: &Controller, queue: &str) -> String {
    format!(
        "[queues.default]\nsink = \"scripted\"\n{queue}\n\
         [sinks.scripted]\ntype = \"scripted\"\naddress = \"{}\"\nrelay = \"RELAY\"\n[sweeper]\ninterval = \"200ms\"\n",
        sink.address()
    )
}

/// The order in which the events of a key were first delivered, as the payload's `n`.
fn delivered(sink: &Controller, key: &str) -> Vec<u64> {
    let mut seen = HashSet::new();
    let of_key = sink.delivered().into_iter().filter(|delivery| delivery.aggregate_id == key);
    of_key
        .filter(|delivery| seen.insert(delivery.id))
        .map(|delivery| {
            let body = delivery.body().expect("a body");
            let value: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            value["n"].as_u64().expect("n")
        })
        .collect()
}

/// Two heads are rejected for good; one is discarded and one is retried, and each key goes on in its order.
async fn blocked_key(engine: Engine) -> Result<()> {
    let rejects = |delivery: &outbox_sinks::scripted::Delivery| {
        let first = delivery.body().is_some_and(|body| body == br#"{"n": 0}"#);
        let bad = first && delivery.aggregate_id != "good";
        if bad { Reply::Reject("too large".to_owned()) } else { Reply::Ack }
    };
    let sink = Controller::bind(rejects).await?;
    let mut stage = Stage::set(engine, play(&sink, "on_failed = \"block\"")).await?;
    for key in ["retried", "discarded", "good"] {
        stage.insert(key, 3).await?;
    }
    let relay = stage.relay("relay")?;
    let failed = "SELECT count(*) FROM outbox_tasks WHERE status = 'FAILED'";
    stage.until(failed, 2, SOON).await.with_context(|| relay.log())?;
    stage.until("SELECT count(*) FROM outbox_tasks WHERE status = 'PUBLISHED'", 3, SOON).await?;
    ensure!(delivered(&sink, "good") == [0, 1, 2], "the other key goes on");
    ensure!(
        delivered(&sink, "retried").is_empty() && delivered(&sink, "discarded").is_empty(),
        "followers wait"
    );

    let list = stage.outbox(&["failed", "list", "--format", "json"])?;
    let rows: Vec<serde_json::Value> = serde_json::from_str(&list).with_context(|| list.clone())?;
    ensure!(rows.len() == 2 && rows.iter().all(|row| row["last_error"] == "too large"), "{list}");
    let id_of = |key: &str| {
        let row = rows.iter().find(|row| row["aggregate_id"] == key).expect("listed");
        row["id"].as_str().expect("an id").to_owned()
    };
    ensure!(
        log_has(&relay.log(), "FAILED", &id_of("retried")),
        "the final failure is logged: {}",
        relay.log()
    );

    sink.set_script(|_| Reply::Ack);
    stage.outbox(&["failed", "retry", "--id", &id_of("retried")])?;
    stage.outbox(&["failed", "discard", "--id", &id_of("discarded")])?;
    stage.until(UNSETTLED, 0, SOON).await.with_context(|| relay.log())?;
    ensure!(
        delivered(&sink, "retried") == [0, 1, 2],
        "a retried row keeps its place: {:?}",
        delivered(&sink, "retried")
    );
    ensure!(delivered(&sink, "discarded") == [1, 2], "a discarded row is skipped");
    let discarded = "SELECT count(*) FROM outbox_tasks
        WHERE status = 'FAILED' AND failed_at IS NULL AND receipt = 'discarded'";
    ensure!(stage.number(discarded).await? == 1, "a discarded row stays until retention takes it");
    stage.until("SELECT count(*) FROM outbox_blocked_keys", 0, SOON).await
}

fn log_has(log: &str, message: &str, id: &str) -> bool {
    let has = |line: &str| {
        line.contains(message) && line.contains(id) && line.contains("Changed") && line.contains("attempts")
    };
    log.lines().any(has)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_queue_waits_on_postgres() -> Result<()> {
    paused(Engine::Postgres).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_queue_waits_on_sqlite() -> Result<()> {
    paused(Engine::Sqlite).await
}

async fn paused(engine: Engine) -> Result<()> {
    let sink = Controller::bind(|_| Reply::Ack).await?;
    let mut stage = Stage::set(engine, play(&sink, "")).await?;
    stage.outbox(&["pause", "default"])?;
    stage.insert("a", 2).await?;
    // A drain looks once and says that all that may go has gone.
    stage.outbox(&["run", "--once"])?;
    ensure!(sink.arrived() == 0 && stage.count("PENDING").await? == 2, "a paused queue delivers nothing");
    stage.outbox(&["resume", "default"])?;
    stage.outbox(&["run", "--once"])?;
    ensure!(
        delivered(&sink, "a") == [0, 1] && stage.count("PUBLISHED").await? == 2,
        "a resumed queue goes on"
    );
    Ok(())
}

/// The database dies and comes back; the relay says so and goes on without a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_crashes_is_waited_for() -> Result<()> {
    let server = Postgres::start(Options::installed()?)?;
    let url = server.create_database(None).await?;
    let sink = Controller::bind(|_| Reply::Ack).await?;
    let queue = "lease = \"2s\"\npublish_timeout = \"1500ms\"";
    let mut stage = Stage::on(Engine::Postgres, url.clone(), play(&sink, queue)).await?;
    let relay = stage.relay("relay")?;
    stage.insert("a", 3).await?;
    stage.until(UNSETTLED, 0, SOON).await.with_context(|| relay.log())?;

    server.kill()?;
    ensure!(waited(|| relay.log().contains("does not answer")).await, "the outage is said: {}", relay.log());
    server.launch()?;
    stage.reconnect().await?;
    stage.insert("a", 3).await?;
    stage.until(UNSETTLED, 0, SOON).await.with_context(|| relay.log())?;
    // A settle that the crash undid makes duplicates, and nothing else.
    let order = delivered(&sink, "a");
    ensure!(order == [0, 1, 2, 0, 1, 2], "first deliveries {order:?}");
    ensure!(relay.log().contains("answers again"), "the end of the outage is said: {}", relay.log());
    Ok(())
}

async fn waited(condition: impl Fn() -> bool) -> bool {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, wait).await.is_ok()
}
