//! What the sweeper does inside a running relay.

use std::sync::Arc;
use std::time::Duration;

use outbox_sinks::scripted::Reply;
use outbox_store::{Claimed, QueuePolicy};

use crate::stage::{Stage, until};

/// A relay that claims everything there is and dies.
async fn claim_and_die(stage: &Stage, lease: Duration) {
    stage.store.register_queues(&["default"]).await.unwrap();
    let policy = QueuePolicy { lease, ..QueuePolicy::named("default") };
    let claimed = stage.store.claimer(Arc::new(policy)).claim().await.unwrap();
    assert!(matches!(claimed, Claimed::Rows(_)), "{claimed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rows_of_a_relay_that_died_are_delivered() {
    let stage = Stage::new(|_| Reply::Ack).await;
    stage.insert("default", "a", "1").await;
    stage.insert("default", "b", "1").await;
    claim_and_die(&stage, Duration::from_millis(1)).await;
    let (shutdown, run) = stage.start();
    stage.until_count("status = 'PUBLISHED' AND lost_count = 1 AND retry_count = 0", 2).await;
    shutdown.cancel();
    run.await.unwrap().unwrap();
    assert_eq!(stage.claims().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_kills_every_relay_ends_failed() {
    let mut stage = Stage::new(|_| Reply::Ack).await;
    stage.settings("default").max_retries = 0;
    stage.insert("default", "a", "1").await;
    claim_and_die(&stage, Duration::from_millis(1)).await;
    let (shutdown, run) = stage.start();
    stage.until_count("status = 'FAILED' AND last_error = 'Max retries exceeded without ACK'", 1).await;
    shutdown.cancel();
    run.await.unwrap().unwrap();
    assert_eq!(stage.controller.arrived(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_alive_is_left_alone() {
    let stage = Stage::new(|_| Reply::Ack).await;
    stage.insert("default", "a", "1").await;
    claim_and_die(&stage, Duration::from_secs(3600)).await;
    stage.insert("default", "b", "1").await;
    let (shutdown, run) = stage.start();
    stage.until_count("status = 'PUBLISHED'", 1).await;
    shutdown.cancel();
    run.await.unwrap().unwrap();
    assert_eq!(
        (stage.claims().await, stage.count("aggregate_id = 'a' AND status = 'PROCESSING'").await),
        (1, 1)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn delivered_rows_go_when_their_time_is_over() {
    let mut stage = Stage::new(|_| Reply::Ack).await;
    stage.settings("default").keep_for = Duration::ZERO;
    stage.insert("default", "a", "1").await;
    let (shutdown, run) = stage.start();
    until("delivered and purged", async || stage.controller.arrived() == 1 && stage.count("true").await == 0)
        .await;
    shutdown.cancel();
    run.await.unwrap().unwrap();
}
