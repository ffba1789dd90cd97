//! The pipeline on SQLite, with a sink that does as the test says.

mod faults;
mod stage;
mod sweeps;

use std::collections::HashMap;
use std::time::Duration;

use outbox_sinks::scripted::Reply;
use stage::{AT_MOST, Stage};
use tokio_util::sync::CancellationToken;

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_delivers_every_row_once_and_in_order() {
    let mut stage = Stage::new(|_| Reply::Ack).await;
    stage.settings("default").batch = 7;
    for round in 0..40 {
        for key in ["a", "b", "c"] {
            stage.insert("default", key, &round.to_string()).await;
        }
    }
    let drained = stage.relay().run_once(CancellationToken::new()).await.unwrap();
    assert!(drained.is_complete());
    let mut next: HashMap<String, u32> = HashMap::new();
    for delivery in stage.controller.delivered() {
        let expected = next.entry(delivery.aggregate_id.clone()).or_default();
        assert_eq!(delivery.body().unwrap(), expected.to_string().as_bytes());
        *expected += 1;
    }
    assert_eq!(next.values().sum::<u32>(), 120);
    assert_eq!(stage.count("status = 'PUBLISHED' AND receipt = 'scripted'").await, 120);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_inserted_while_the_relay_is_idle_is_delivered() {
    let stage = Stage::new(|_| Reply::Ack).await;
    let (shutdown, run) = stage.start();
    for seq in 1..=3 {
        stage.insert("default", "a", "1").await;
        assert!(stage.controller.wait_for(AT_MOST, |recorded| recorded.len() == seq).await);
    }
    shutdown.cancel();
    run.await.unwrap().unwrap();
    assert_eq!(stage.count("status = 'PUBLISHED'").await, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_in_flight_is_settled_at_shutdown() {
    let stage = Stage::new(|_| Reply::Hold).await;
    stage.insert("default", "a", "1").await;
    let (shutdown, run) = stage.start();
    assert!(stage.controller.wait_for(AT_MOST, |recorded| recorded.len() == 1).await);
    shutdown.cancel();
    assert_eq!(stage.controller.answer_held(|_| Some(Reply::Ack)), 1);
    run.await.unwrap().unwrap();
    assert_eq!(stage.count("status = 'PUBLISHED'").await, 1);
    assert_eq!(stage.claims().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_published_before_the_grace_period_ends_is_released() {
    let mut stage = Stage::new(|_| Reply::Hold).await;
    stage.grace = Duration::from_secs(2);
    stage.insert("default", "a", "1").await;
    stage.insert("default", "a", "2").await;
    let (shutdown, run) = stage.start();
    assert!(stage.controller.wait_for(AT_MOST, |recorded| recorded.len() == 1).await);
    let asked = std::time::Instant::now();
    shutdown.cancel();
    run.await.unwrap().unwrap();
    assert!(asked.elapsed() < stage.grace, "{:?}", asked.elapsed());
    assert_eq!(stage.count("status = 'PENDING' AND retry_count = 0 AND lost_count = 0").await, 2);
    assert_eq!(stage.claims().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_queue_is_left_alone_by_a_drain() {
    let stage = Stage::new(|_| Reply::Ack).await;
    stage.insert("default", "a", "1").await;
    stage.store.register_queues(&["default"]).await.unwrap();
    stage.store.set_paused("default", true).await.unwrap();
    assert!(stage.relay().run_once(CancellationToken::new()).await.unwrap().is_complete());
    assert_eq!(stage.controller.arrived(), 0);
    stage.store.set_paused("default", false).await.unwrap();
    stage.relay().run_once(CancellationToken::new()).await.unwrap();
    assert_eq!(stage.controller.arrived(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn health_tells_live_and_ready() {
    let stage = Stage::new(|_| Reply::Ack).await;
    let relay = stage.relay();
    let health = relay.health();
    assert!(!health.snapshot().is_ready(), "not tried yet");
    let shutdown = CancellationToken::new();
    let run = tokio::spawn(relay.run(shutdown.clone()));
    stage::until("ready", async || health.snapshot().is_ready()).await;
    let snapshot = health.snapshot();
    assert!(snapshot.is_live());
    assert_eq!(snapshot.loops.keys().collect::<Vec<_>>(), ["monitor", "queue default", "sweeper"]);
    shutdown.cancel();
    run.await.unwrap().unwrap();
}
