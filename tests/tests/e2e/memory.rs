//! What a relay keeps in memory is bounded by its batches, whatever waits in the table.
#![allow(clippy::print_stderr)] // the figures of a run

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use outbox_tests::process::Relay;
use uuid::Uuid;

use crate::sinks::Broker;
use crate::sinks::kafka::Cluster;
use crate::stage::{Engine, Stage};

const MOST_KIB: u64 = 150 * 1024;
const AT_MOST: Duration = Duration::from_secs(1800);

/// So many rows of so many bytes.
#[derive(Clone, Copy)]
struct Backlog {
    rows: u64,
    bytes: u64,
}

fn backlogs() -> [Backlog; 2] {
    let long = std::env::var_os("OUTBOX_TEST_LONG").is_some();
    let (small, large) = if long { (1_000_000, 200) } else { (50_000, 20) };
    [Backlog { rows: small, bytes: 2_000 }, Backlog { rows: large, bytes: 5_000_000 }]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_big_backlog_does_not_make_a_big_relay_on_postgres() -> Result<()> {
    run(Engine::Postgres).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_big_backlog_does_not_make_a_big_relay_on_sqlite() -> Result<()> {
    run(Engine::Sqlite).await
}

async fn run(engine: Engine) -> Result<()> {
    let topic = format!("memory-{}", Uuid::now_v7().simple());
    for sink in ["type = \"null\"".to_owned(), kafka(&topic).await?] {
        for backlog in backlogs() {
            drain(engine, &topic, &sink, backlog).await?;
        }
    }
    Ok(())
}

/// A sink whose client has buffers of its own.
async fn kafka(topic: &str) -> Result<String> {
    let cluster = Cluster::shared().await?;
    cluster.create_with(topic, &["max.message.bytes=6000000"]).await?;
    Ok(format!("{}max_message_bytes = 6000000", cluster.sink()))
}

async fn drain(engine: Engine, destination: &str, sink: &str, backlog: Backlog) -> Result<()> {
    let play = format!(
        "[queues.default]\nsink = \"measured\"\ndestination = \"{destination}\"\n[sinks.measured]\n{sink}\n"
    );
    let mut stage = Stage::set(engine, play).await?;
    stage.execute(&insert(engine, backlog)).await?;
    let mut relay = stage.relay("relay")?;
    let unsettled = "SELECT count(*) FROM outbox_tasks WHERE settled_at IS NULL";
    stage.until(unsettled, 0, AT_MOST).await.with_context(|| relay.log())?;
    let rows = i64::try_from(backlog.rows)?;
    ensure!(stage.count("PUBLISHED").await? == rows, "every row is delivered");
    let peak = peak_kib(&relay)?;
    eprintln!(
        "{engine:?}, {} rows of {} bytes, {}: {} MiB at most",
        backlog.rows,
        backlog.bytes,
        sink.lines().next().unwrap_or_default(),
        peak / 1024
    );
    ensure!(peak < MOST_KIB, "{peak} KiB resident at most");
    relay.terminate();
    ensure!(relay.wait(Duration::from_secs(20))?.success(), "SIGTERM: {}", relay.log());
    Ok(())
}

fn insert(engine: Engine, Backlog { rows, bytes }: Backlog) -> String {
    match engine {
        Engine::Postgres => format!(
            "INSERT INTO outbox_tasks (aggregate_type, aggregate_id, payload) \
             SELECT 'Order', (i % 5000)::text, json_build_object('text', repeat('x', {bytes})) \
             FROM generate_series(1, {rows}) i"
        ),
        Engine::Sqlite => format!(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) \
             INSERT INTO outbox_tasks (id, aggregate_type, aggregate_id, payload) \
             SELECT printf('00000000-0000-4000-8000-%012x', i), 'Order', i % 5000, \
             '{{\"text\": \"' || replace(hex(zeroblob({bytes} / 2)), '0', 'x') || '\"}}' FROM n"
        ),
    }
}

/// The most memory that the relay has had resident, from the kernel.
fn peak_kib(relay: &Relay) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", relay.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
