//! Everything goes wrong, several things at a time: relays, the broker, the database and the links between them.
//! Nothing is lost, invented or put out of order, and nothing is left behind.
//!
//! `OUTBOX_TEST_SEED` repeats a run's plan, `OUTBOX_TEST_SOAK` says how many seconds faults go on for at least.
#![allow(clippy::print_stderr)] // the seed, the plan and the figures of a run

mod full_disk;
mod plan;
mod play;
mod world;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use outbox_tests::process::fake_clock;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::checker;
use crate::stage::Engine;
use crate::writers::{Load, write_postgres, write_sqlite};
use plan::Plan;
use world::World;

/// Longest time until all is delivered and deleted once nothing goes wrong any more. Seconds as a rule; but long work,
/// such as a sweep, that was under way on a link that went silent is given up only after 105 s.
const CALM: Duration = Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_loss_and_order_on_postgres_whatever_goes_wrong() -> Result<()> {
    if fake_clock().is_none() {
        outbox_tests::skip("libfaketime is not installed, and no relay's clock can be wrong");
        return Ok(());
    }
    run(Engine::Postgres).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_loss_and_order_on_sqlite_whatever_goes_wrong() -> Result<()> {
    run(Engine::Sqlite).await
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// How long faults go on for, at least: until each has come once.
fn soak() -> Duration {
    let usual = if std::env::var_os("OUTBOX_TEST_LONG").is_some() { 75 } else { 25 };
    Duration::from_secs(number("OUTBOX_TEST_SOAK").unwrap_or(usual))
}

/// The first load commits at once. The second draws its seqs early and commits many of them late, and goes on with the
/// same keys right afterwards.
fn loads(engine: Engine, seed: u64) -> [Load; 2] {
    let (writers, late) = match engine {
        Engine::Postgres => (8, 0.5),
        // A late commit holds the one write lock that there is.
        Engine::Sqlite => (2, 0.01),
    };
    let usual = Load {
        prefix: "k",
        keys: 200,
        writers,
        rollbacks: 0.2,
        late: 0.0,
        late_at_most: Duration::from_millis(1),
        pause: Duration::from_millis(30),
        seed,
    };
    let long = Load {
        prefix: "long",
        keys: 8,
        writers: 2,
        late,
        late_at_most: Duration::from_secs(if engine == Engine::Postgres { 6 } else { 2 }),
        seed: !seed,
        ..usual
    };
    [usual, long]
}

async fn run(engine: Engine) -> Result<()> {
    let seed = number("OUTBOX_TEST_SEED").unwrap_or_else(rand::random);
    let again = format!("OUTBOX_TEST_SEED={seed} OUTBOX_TEST_SOAK={}", soak().as_secs());
    eprintln!("{engine:?}: {again}");
    soak_through(engine, seed).await.context(again)
}

async fn soak_through(engine: Engine, seed: u64) -> Result<()> {
    let mut world = World::build(engine).await?;
    let stop = CancellationToken::new();
    let writers = loads(engine, seed).map(|load| {
        let (url, stop) = (world.stage.url.clone(), stop.clone());
        tokio::spawn(async move {
            match engine {
                Engine::Postgres => write_postgres(&url, load, stop).await,
                Engine::Sqlite => write_sqlite(&url, load, stop).await,
            }
        })
    });
    let (of_relays, of_servers) = world.faults();
    let plans = [Plan::new(seed, of_relays), Plan::new(seed.rotate_left(32), of_servers)];
    let done = play::act(&mut world, plans, soak()).await?;
    stop.cancel();
    let mut attempts = Vec::new();
    for writer in writers {
        attempts.extend(writer.await?);
    }
    world.stage.reconnect().await?;
    let quiet = Instant::now();
    drain(&mut world).await.with_context(|| world.logs())?;
    let quiet = quiet.elapsed();

    let deliveries: Vec<Uuid> = world.delivered().await?;
    let report = checker::check(&attempts, &deliveries);
    eprintln!(
        "{engine:?}: {done} faults, then {quiet:.1?} to the end; {} committed of {} attempted, {} delivered, {} duplicates; \
         {} lost, {} unexpected, {} inversions, {} scan misses",
        report.committed,
        attempts.len(),
        report.delivered,
        report.duplicates,
        report.lost.len(),
        report.unexpected.len(),
        report.inversions.len(),
        world.scan_misses()
    );
    report.assert_clean();
    ensure!(report.committed > 500, "too few events to show anything");
    ensure!(world.scan_misses() == 0, "rows that only the safety scan found");
    world.end()
}

/// Once nothing goes wrong any more all is delivered, and retention deletes it; no claim is left.
async fn drain(world: &mut World) -> Result<()> {
    let stage = &mut world.stage;
    let unsettled = "SELECT count(*) FROM outbox_tasks WHERE settled_at IS NULL";
    stage.until(unsettled, 0, CALM).await?;
    ensure!(stage.count("PROCESSING").await? == 0, "rows are left PROCESSING");
    ensure!(stage.count("FAILED").await? == 0, "an innocent row FAILED");
    stage.until("SELECT count(*) FROM outbox_claims", 0, CALM).await?;
    stage.until("SELECT count(*) FROM outbox_tasks", 0, CALM).await
}
