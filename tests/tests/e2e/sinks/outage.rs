//! The broker is killed again and again under load. Nothing is lost, nothing comes out of order, no row is charged.
#![allow(clippy::print_stderr)] // the figures of a run

use std::time::Duration;

use anyhow::{Result, ensure};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Broker, play};
use crate::checker;
use crate::stage::{Engine, Stage};
use crate::writers::{Load, write_postgres, write_sqlite};

/// How long a broker that became ready is let alone before it is killed.
const READY: Duration = Duration::from_secs(5);
/// How long it stays away.
const AWAY: Duration = Duration::from_millis(500);

/// Five kills over at least a minute with `--long`, two otherwise.
fn plan() -> (u32, Duration) {
    if std::env::var_os("OUTBOX_TEST_LONG").is_some() {
        (5, Duration::from_secs(60))
    } else {
        (2, Duration::from_secs(12))
    }
}

/// Kills the broker 5 s after it became ready and starts it again, while writers write and one relay delivers.
pub(crate) async fn run(broker: &dyn Broker, engine: Engine) -> Result<()> {
    let destination = format!("outage-{}", Uuid::now_v7().simple());
    broker.create(&destination).await?;
    let more = "lease = \"20s\"\npublish_timeout = \"6s\"";
    let mut stage = Stage::set(engine, play(broker, &destination, more)).await?;
    let mut relay = stage.relay("relay")?;
    let load = Load {
        prefix: "k",
        keys: 200,
        writers: if engine == Engine::Postgres { 8 } else { 2 },
        rollbacks: 0.05,
        late: 0.0,
        late_at_most: Duration::from_millis(1),
        pause: Duration::from_millis(30),
        seed: 11,
    };
    let stop = CancellationToken::new();
    let writers = {
        let (url, stop) = (stage.url.clone(), stop.clone());
        tokio::spawn(async move {
            match engine {
                Engine::Postgres => write_postgres(&url, load, stop).await,
                Engine::Sqlite => write_sqlite(&url, load, stop).await,
            }
        })
    };
    let (kills, at_least) = plan();
    let began = tokio::time::Instant::now();
    for _ in 0..kills {
        tokio::time::sleep(READY).await;
        broker.kill().await?;
        tokio::time::sleep(AWAY).await;
        broker.start_again().await?;
    }
    tokio::time::sleep_until(began + at_least).await;
    stop.cancel();
    let attempts = writers.await?;
    let unsettled = "SELECT count(*) FROM outbox_tasks WHERE settled_at IS NULL";
    let drained = stage.until(unsettled, 0, Duration::from_secs(90)).await;
    ensure!(relay.try_status()?.is_none(), "the relay ended: {}", relay.log());
    drained?;

    let received = broker.consume(&destination).await?;
    let ids = received.iter().map(super::Received::id).collect::<Result<Vec<_>>>()?;
    let report = checker::check(&attempts, &ids);
    eprintln!(
        "{kills} kills: {} committed of {} attempted, {} delivered, {} duplicates",
        report.committed,
        attempts.len(),
        report.delivered,
        report.duplicates
    );
    report.assert_clean();
    ensure!(report.committed > 500, "too few events to show anything");
    ensure!(
        stage.number("SELECT count(*) FROM outbox_tasks WHERE retry_count > 0").await? == 0,
        "a row was charged"
    );
    ensure!(
        stage.number("SELECT count(*) FROM outbox_tasks WHERE lost_count > 0").await? == 0,
        "a claim was lost"
    );
    ensure!(stage.count("FAILED").await? == 0, "a row FAILED");
    relay.terminate();
    ensure!(relay.wait(Duration::from_secs(20))?.success(), "SIGTERM: {}", relay.log());
    Ok(())
}
