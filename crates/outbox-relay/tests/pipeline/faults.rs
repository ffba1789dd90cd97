//! Who is to blame, and what it costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outbox_sinks::scripted::Reply;
use outbox_sinks::{Answer, Message, Sink};
use outbox_store::OnFailed;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::stage::{AT_MOST, Stage};

#[tokio::test(flavor = "multi_thread")]
async fn poison_ends_failed_and_the_others_are_delivered() {
    let mut stage = Stage::new(|delivery| match delivery.aggregate_id.as_str() {
        "poison" => Reply::Nack("nack".into()),
        "hopeless" => Reply::Reject("too large".into()),
        _ => Reply::Ack,
    })
    .await;
    stage.settings("default").max_retries = 2;
    for key in ["a", "poison", "b", "hopeless", "a"] {
        stage.insert("default", key, "1").await;
    }
    let (shutdown, run) = stage.start();
    stage.until_count("status = 'FAILED'", 2).await;
    stage.until_count("status = 'PUBLISHED'", 3).await;
    shutdown.cancel();
    run.await.unwrap().unwrap();
    assert_eq!(stage.count("aggregate_id = 'poison' AND retry_count = 3 AND last_error = 'nack'").await, 1);
    let tries =
        |key: &str| stage.controller.recorded().iter().filter(|one| one.delivery.aggregate_id == key).count();
    assert_eq!((tries("poison"), tries("hopeless")), (3, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retried_row_holds_its_key_until_it_is_delivered() {
    let refusals = AtomicU32::new(0);
    let stage = Stage::new(move |delivery| {
        let first = delivery.body().unwrap() == b"1";
        if first && refusals.fetch_add(1, Ordering::Relaxed) < 3 {
            Reply::Nack("nack".into())
        } else {
            Reply::Ack
        }
    })
    .await;
    for payload in ["1", "2", "3"] {
        stage.insert("default", "a", payload).await;
    }
    let (shutdown, run) = stage.start();
    stage.until_count("status = 'PUBLISHED'", 3).await;
    shutdown.cancel();
    run.await.unwrap().unwrap();
    let delivered: Vec<_> = stage.controller.delivered().iter().map(|one| one.body().unwrap()).collect();
    assert_eq!(delivered, [b"1", b"2", b"3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_charges_nothing_and_heals_by_itself() {
    let stage = Stage::new(|_| Reply::Refuse("down".into())).await;
    for key in ["a", "b", "c"] {
        stage.insert("default", key, "1").await;
    }
    let relay = stage.relay();
    let health = relay.health();
    let shutdown = CancellationToken::new();
    let run = tokio::spawn(relay.run(shutdown.clone()));
    // The batch that opens the breaker, and two probes.
    assert!(stage.controller.wait_for(AT_MOST, |recorded| recorded.len() >= 9).await);
    assert!(!health.snapshot().is_ready());
    stage.controller.set_script(|_| Reply::Ack);
    stage.until_count("status = 'PUBLISHED' AND retry_count = 0 AND lost_count = 0", 3).await;
    shutdown.cancel();
    run.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_says_that_a_sink_is_down() {
    let mut stage = Stage::new(|_| Reply::Refuse("down".into())).await;
    stage.add_queue("other");
    stage.insert("default", "a", "1").await;
    let drained = stage.relay().run_once(CancellationToken::new()).await.unwrap();
    assert_eq!(drained.blocked, [("default".to_owned(), "default".to_owned())]);
    assert_eq!(stage.count("status = 'PENDING' AND retry_count = 0").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_sink_is_given_up_at_the_deadline_and_the_rows_are_released() {
    let mut stage = Stage::new(|_| Reply::Ignore).await;
    stage.publish_timeout(Duration::from_millis(300));
    stage.insert("default", "a", "1").await;
    stage.insert("default", "b", "1").await;
    let drained = stage.relay().run_once(CancellationToken::new()).await.unwrap();
    assert!(!drained.is_complete());
    assert_eq!(stage.count("status = 'PENDING' AND retry_count = 0 AND lost_count = 0").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_the_sink_keeps_silent_about_does_not_pass_for_an_outage() {
    let mut stage = Stage::new(|delivery| match delivery.aggregate_id.as_str() {
        "silent" => Reply::Ignore,
        _ => Reply::Ack,
    })
    .await;
    stage.settings("default").batch = 2;
    stage.publish_timeout(Duration::from_millis(200));
    for key in ["silent", "silent", "silent", "a", "b"] {
        stage.insert("default", key, "1").await;
    }
    let (shutdown, run) = stage.start();
    stage.until_count("status = 'PUBLISHED'", 2).await;
    shutdown.cancel();
    run.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_sinks_outage_leaves_another_queue_alone() {
    let mut stage =
        Stage::new(|delivery| if delivery.queue == "default" { Reply::Hold } else { Reply::Ack }).await;
    stage.add_queue("other");
    for _ in 0..3 {
        stage.insert("default", "a", "1").await;
    }
    let (shutdown, run) = stage.start();
    assert!(stage.controller.wait_for(AT_MOST, |recorded| !recorded.is_empty()).await);
    for _ in 0..50 {
        stage.insert("other", "a", "1").await;
    }
    stage.until_count("queue = 'other' AND status = 'PUBLISHED'", 50).await;
    assert_eq!(stage.count("queue = 'default' AND status = 'PUBLISHED'").await, 0);
    stage.controller.set_script(|_| Reply::Ack);
    stage.controller.answer_held(|_| Some(Reply::Ack));
    stage.until_count("status = 'PUBLISHED'", 53).await;
    shutdown.cancel();
    run.await.unwrap().unwrap();
}

/// A sink made of one function.
struct With(fn(&Message<'_>) -> Answer);

#[async_trait]
impl Sink for With {
    fn kind(&self) -> &'static str {
        "test"
    }

    fn needs_destination(&self) -> bool {
        true
    }

    async fn publish(&self, batch: &[Message<'_>], _deadline: Instant) -> Vec<Answer> {
        batch.iter().map(self.0).collect()
    }

    async fn check(&self, _deadline: Instant) -> Result<String, String> {
        Ok(String::new())
    }

    async fn close(&self) {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_that_panics_takes_the_relay_down_loudly() {
    let mut stage = Stage::new(|_| Reply::Ack).await;
    stage.sinks.insert("other".into(), Arc::new(With(|_| panic!("on purpose"))));
    stage.add_queue("other");
    stage.insert_to("other", "a", Some("topic")).await;
    let (_shutdown, run) = stage.start();
    let error = tokio::time::timeout(AT_MOST, run).await.unwrap().unwrap().unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("queue other died") && error.contains("on purpose"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_without_a_destination_is_failed_with_what_to_do() {
    for (on_failed, published) in [(OnFailed::Skip, 2), (OnFailed::Block, 1)] {
        let mut stage = Stage::new(|_| Reply::Ack).await;
        stage.sinks.insert("default".into(), Arc::new(With(|_| Answer::Acked { receipt: None })));
        stage.settings("default").on_failed = on_failed;
        stage.insert_to("default", "a", None).await;
        stage.insert_to("default", "a", Some("topic")).await;
        stage.insert_to("default", "b", Some("topic")).await;
        stage.relay().run_once(CancellationToken::new()).await.unwrap();
        assert_eq!(stage.count("status = 'FAILED' AND last_error LIKE '%[queues.default]%'").await, 1);
        assert_eq!(stage.count("status = 'PUBLISHED'").await, published, "{on_failed:?}");
    }
}
