//! Relays are killed while they hold claims; nothing is lost, invented or put out of order.
#![allow(clippy::print_stderr)] // the seed and the figures of a run

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Result, ensure};
use outbox_sinks::scripted::{Controller, Reply};
use outbox_tests::process::Relay;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::checker;
use crate::stage::{Engine, Stage};
use crate::writers::{Load, write_postgres, write_sqlite};

const LEASE: Duration = Duration::from_secs(3);
const SWEEP: Duration = Duration::from_millis(500);

/// One run of the storm.
struct Storm {
    engine: Engine,
    relays: usize,
    load: Load,
    lasts: Duration,
    kills: usize,
}

fn seed() -> u64 {
    std::env::var("OUTBOX_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random)
}

/// The whole minute with `--long`, a shorter one otherwise.
fn storm(engine: Engine, relays: usize, load: Load) -> Storm {
    let long = std::env::var_os("OUTBOX_TEST_LONG").is_some();
    let (lasts, kills) = if long { (Duration::from_secs(75), 40) } else { (Duration::from_secs(25), 10) };
    Storm { engine, relays, load, lasts, kills }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_loss_and_order_on_postgres_while_relays_are_killed() -> Result<()> {
    let load = Load {
        prefix: "k",
        keys: 500,
        writers: 20,
        rollbacks: 0.2,
        late: 0.02,
        late_at_most: Duration::from_secs(2),
        pause: Duration::from_millis(25),
        seed: seed(),
    };
    storm(Engine::Postgres, 4, load).run().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_loss_and_order_on_sqlite_while_relays_are_killed() -> Result<()> {
    // A late commit holds the one write lock that there is: rarer, or nobody else would ever write.
    let load = Load {
        prefix: "k",
        keys: 500,
        writers: 4,
        rollbacks: 0.2,
        late: 0.002,
        late_at_most: Duration::from_secs(2),
        pause: Duration::from_millis(10),
        seed: seed(),
    };
    storm(Engine::Sqlite, 2, load).run().await
}

impl Storm {
    async fn run(self) -> Result<()> {
        eprintln!("OUTBOX_TEST_SEED={}", self.load.seed);
        let mut draws = StdRng::seed_from_u64(self.load.seed);
        let script = move |_: &_| {
            if draws.random_bool(0.02) { Reply::Nack("scripted".to_owned()) } else { Reply::Ack }
        };
        let sink = Controller::bind(script).await?;
        let play = format!(
            "[queues.default]\nsink = \"scripted\"\nbatch = 100\nlease = \"{}ms\"\npublish_timeout = \"1500ms\"\n\
             retry = {{ initial = \"100ms\", factor = 2.0, max = \"1s\", jitter = 0.2 }}\n\
             [sinks.scripted]\ntype = \"scripted\"\naddress = \"{}\"\nrelay = \"RELAY\"\n[sweeper]\ninterval = \"{}ms\"\n",
            LEASE.as_millis(),
            sink.address(),
            SWEEP.as_millis()
        );
        let mut stage = Stage::set(self.engine, play).await?;
        let stop = CancellationToken::new();
        let writers = {
            let (url, load, stop) = (stage.url.clone(), self.load, stop.clone());
            match self.engine {
                Engine::Postgres => tokio::spawn(async move { write_postgres(&url, load, stop).await }),
                Engine::Sqlite => tokio::spawn(async move { write_sqlite(&url, load, stop).await }),
            }
        };
        let (mut relays, killed_holding) = self.kill_relays(&mut stage).await?;
        stop.cancel();
        let attempts = writers.await?;
        drain(&mut stage).await?;

        let deliveries: Vec<Uuid> = sink.delivered().into_iter().map(|delivery| delivery.id).collect();
        let report = checker::check(&attempts, &deliveries);
        let retried = stage.number("SELECT count(*) FROM outbox_tasks WHERE retry_count > 0").await?;
        eprintln!(
            "{:?}: {} committed of {} attempted, {} delivered, {} duplicates, {} retried, {killed_holding} kills of a relay with a claim in hand",
            self.engine,
            report.committed,
            attempts.len(),
            report.delivered,
            report.duplicates,
            retried
        );
        report.assert_clean();
        let ids: HashSet<Uuid> = deliveries.into_iter().collect();
        ensure!(ids.len() == report.delivered, "the checker and the sink count the same");
        ensure!(stage.count("FAILED").await? == 0, "an innocent row FAILED");
        ensure!(report.committed > 1000 && retried > 0, "the storm was too weak to show anything");
        ensure!(
            killed_holding >= self.kills,
            "only {killed_holding} relays were killed with a claim in hand"
        );
        for relay in &mut relays {
            relay.terminate();
            ensure!(relay.wait(Duration::from_secs(15))?.success(), "SIGTERM: {}", relay.log());
        }
        Ok(())
    }

    /// Once a second the relay whose turn it is, as soon as it holds a claim, is killed and started again.
    async fn kill_relays(&self, stage: &mut Stage) -> Result<(Vec<Relay>, usize)> {
        let names: Vec<String> = (0..self.relays).map(|n| format!("relay-{n}")).collect();
        let mut relays = names.iter().map(|name| stage.relay(name)).collect::<Result<Vec<_>>>()?;
        let (end, mut killed, mut ticks) =
            (Instant::now() + self.lasts, 0, tokio::time::interval(Duration::from_secs(1)));
        // The first tick is immediate: the relays get a second to start.
        ticks.tick().await;
        for turn in (0..self.relays).cycle() {
            ticks.tick().await;
            if Instant::now() >= end {
                break;
            }
            if holds_a_claim(stage, &names[turn]).await? {
                relays[turn].kill();
                killed += usize::from(stage.number(&claims_of(&names[turn])).await? > 0);
                relays[turn] = stage.relay(&names[turn])?;
            }
        }
        Ok((relays, killed))
    }
}

fn claims_of(relay: &str) -> String {
    format!("SELECT count(*) FROM outbox_claims WHERE relay = '{relay}'")
}

/// Watches for up to a second for the relay to hold a claim.
async fn holds_a_claim(stage: &mut Stage, relay: &str) -> Result<bool> {
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        if stage.number(&claims_of(relay)).await? > 0 {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(false)
}

/// All is delivered, and nothing stays PROCESSING, once the last lease has run out and a sweep has been by.
async fn drain(stage: &mut Stage) -> Result<()> {
    let at_most = LEASE + SWEEP + Duration::from_secs(60);
    stage.until("SELECT count(*) FROM outbox_tasks WHERE settled_at IS NULL", 0, at_most).await?;
    ensure!(stage.count("PROCESSING").await? == 0, "rows are left PROCESSING");
    stage.until("SELECT count(*) FROM outbox_claims", 0, at_most).await
}
