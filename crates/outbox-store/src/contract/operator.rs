//! What operators see and do: statistics, failed rows, retention, migrations.

use std::time::Duration;

use uuid::Uuid;

use super::{Harness, Relay, When, insert, published, release, retry, row};
use crate::{DISCARDED, FailedEvent, QueueStats, SchemaState, Selection, Verdict};

const HOUR: Duration = Duration::from_secs(3600);

fn failed() -> Verdict {
    Verdict::Failed { error: "too large".to_owned() }
}

async fn stats_of(relay: &Relay, queue: &str) -> QueueStats {
    let stats = relay.store.stats().await.expect("stats");
    assert!(stats.is_sorted_by_key(|stats| &stats.queue));
    stats
        .into_iter()
        .find(|stats| stats.queue == queue)
        .unwrap_or_else(|| panic!("{queue} is not in the statistics"))
}

/// Counts by state, the age of the oldest ready row, the pause switch.
pub async fn stats_count_each_state(h: &dyn Harness) {
    let mut relay = Relay::new(h, 4).await;
    let empty = stats_of(&relay, "default").await;
    assert_eq!(empty, QueueStats { queue: "default".into(), ..QueueStats::default() });
    let keys = ["A", "B", "C", "D"];
    let mut rows: Vec<_> = keys.iter().map(|key| row(key, "1")).collect();
    rows.extend(keys.iter().map(|key| row(key, "2")));
    rows.push(row("E", "delayed").when(When::In(HOUR)));
    let seqs = insert(h, &rows).await;
    let claim = relay.expect(&["1", "1", "1", "1"]).await;
    relay.settle(&claim, &[published(), retry(), failed(), release()]).await;
    // A window that holds all that are left, or which of them are taken is the store's affair.
    let _in_flight = Relay::new(h, 8).await.rows().await;
    h.age(Duration::from_secs(60)).await;
    let stats = stats_of(&relay, "default").await;
    assert_eq!(stats.pending + stats.processing, 7);
    assert_eq!((stats.failed, stats.blocked_keys, stats.last_seq), (1, 1, seqs[8]));
    assert!(!stats.paused);
    assert_eq!(stats.processing, 4, "A2, C2, D1, D2");
    assert_eq!(stats.oldest_pending_age, None, "B2 waits for B1, which waits for its time");
    relay.store.set_paused("default", true).await.expect("pause");
    insert(h, &[row("F", "ready")]).await;
    h.age(Duration::from_secs(60)).await;
    let stats = stats_of(&relay, "default").await;
    let age = stats.oldest_pending_age.expect("a ready row");
    assert!(stats.paused && age >= Duration::from_secs(60) && age < Duration::from_secs(3000), "{age:?}");
}

/// A queue that no relay knows is seen as soon as it has a row.
pub async fn unserved_queue_is_seen(h: &dyn Harness) {
    let relay = Relay::new(h, 10).await;
    insert(
        h,
        &[
            row("A", "A1").queue("unserved"),
            row("A", "A2").queue("unserved"),
            row("A", "A3").queue("a-third"),
        ],
    )
    .await;
    assert_eq!(stats_of(&relay, "unserved").await.pending, 2);
    assert_eq!(stats_of(&relay, "a-third").await.pending, 1);
    assert_eq!(stats_of(&relay, "default").await.pending, 0);
}

/// An insert names its queue and nothing else: a queue appears, and is served, without being made known first.
pub async fn register_twice(h: &dyn Harness) {
    let relay = Relay::new(h, 10).await;
    relay.store.set_paused("default", true).await.expect("pause");
    relay.store.register_queues(&["default", "new"]).await.expect("register");
    assert!(stats_of(&relay, "default").await.paused, "a restart resumed the queue");
    assert!(!stats_of(&relay, "new").await.paused);
    relay.store.ping().await.expect("ping");
}

async fn three_failed(h: &dyn Harness) -> (Relay, Vec<FailedEvent>) {
    insert(h, &[row("A", "A1"), row("B", "B1"), row("C", "C1")]).await;
    insert(h, &[row("A", "X1").queue("other")]).await;
    let mut relay = Relay::new(h, 1).await;
    for label in ["A1", "B1", "C1"] {
        let claim = relay.expect(&[label]).await;
        relay.settle_all(&claim, failed()).await;
        h.age(Duration::from_secs(1)).await;
    }
    let mut other = Relay::with(h, |policy| policy.name = "other".to_owned()).await;
    let claim = other.expect(&["X1"]).await;
    other.settle_all(&claim, failed()).await;
    let all = relay.store.failed(&Selection::All, 100).await.expect("failed");
    (relay, all)
}

fn types(failed: &[FailedEvent]) -> Vec<&str> {
    failed.iter().map(|failed| failed.event_type.as_deref().unwrap_or("")).collect()
}

/// FAILED rows are listed newest first, by id, by queue, or all, up to a limit.
pub async fn failed_rows_are_listed(h: &dyn Harness) {
    let (relay, all) = three_failed(h).await;
    assert_eq!(types(&all), ["X1", "C1", "B1", "A1"]);
    let first = &all[3];
    assert_eq!(
        (first.queue.as_str(), first.aggregate_type.as_str(), first.aggregate_id.as_str()),
        ("default", "Order", "A")
    );
    assert_eq!((first.lost_count, first.last_error.as_deref()), (0, Some("too large")));
    assert_eq!((first.id, first.seq), (h.rows().await[0].id, h.rows().await[0].seq));
    assert!(first.failed_at <= all[0].failed_at);
    let list = async |selection, limit| relay.store.failed(&selection, limit).await.expect("failed");
    assert_eq!(types(&list(Selection::Queue("default".into()), 100).await), ["C1", "B1", "A1"]);
    assert_eq!(types(&list(Selection::All, 2).await), ["X1", "C1"]);
    assert_eq!(types(&list(Selection::Ids(vec![all[2].id, Uuid::now_v7()]), 100).await), ["B1"]);
    assert_eq!(list(Selection::Queue("none".into()), 100).await, []);
}

/// Retry by id, by queue and all: both counts start anew, and the relay that has long passed the rows finds them.
pub async fn failed_rows_are_retried(h: &dyn Harness) {
    let (mut relay, all) = three_failed(h).await;
    for row in h.rows().await {
        h.set_counts(row.seq, 5, 3).await;
    }
    assert_eq!(relay.expect_empty().await, None);
    let retry = async |relay: &Relay, selection| relay.store.retry_failed(&selection).await.expect("retry");
    assert_eq!(retry(&relay, Selection::Ids(vec![all[2].id, Uuid::now_v7()])).await, 1);
    assert_eq!(retry(&relay, Selection::Ids(vec![all[2].id])).await, 0, "it is not FAILED any more");
    let claim = relay.expect(&["B1"]).await;
    assert_eq!((claim.events[0].retry_count, claim.events[0].lost_count), (0, 0));
    relay.publish(&claim).await;
    assert_eq!(retry(&relay, Selection::Queue("default".into())).await, 2);
    let mut delivered = relay.drain().await;
    delivered.extend(relay.drain().await);
    delivered.sort();
    assert_eq!(delivered, ["A1", "C1"]);
    assert_eq!(retry(&relay, Selection::All).await, 1);
    let mut other = Relay::with(h, |policy| policy.name = "other".to_owned()).await;
    assert_eq!(other.drain().await, ["X1"]);
}

/// A row retried under `skip` comes after what was delivered meanwhile, in its place among what was not.
pub async fn retried_row_under_skip(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("A", "A2")]).await;
    let mut relay = Relay::new(h, 10).await;
    let claim = relay.expect(&["A1", "A2"]).await;
    relay.settle(&claim, &[failed(), published()]).await;
    assert_eq!(relay.expect_empty().await, None);
    assert_eq!(relay.store.retry_failed(&Selection::All).await.expect("retry"), 1);
    insert(h, &[row("A", "A3")]).await;
    assert_eq!(relay.drain().await, ["A1", "A3"]);
    assert_eq!(h.blocks().await, []);
}

/// A discarded row stays FAILED, is no longer listed, and goes with retention.
pub async fn failed_rows_are_discarded(h: &dyn Harness) {
    let (mut relay, all) = three_failed(h).await;
    let discard =
        async |relay: &Relay, selection| relay.store.discard_failed(&selection).await.expect("discard");
    assert_eq!(discard(&relay, Selection::Ids(vec![all[3].id])).await, 1);
    assert_eq!(discard(&relay, Selection::Ids(vec![all[3].id])).await, 0);
    let row = h.rows().await[0].clone();
    assert_eq!(
        (row.status.as_str(), row.receipt.as_deref(), row.failed, row.settled),
        ("FAILED", Some(DISCARDED), false, true)
    );
    assert_eq!(types(&relay.store.failed(&Selection::All, 100).await.expect("failed")), ["X1", "C1", "B1"]);
    assert_eq!(stats_of(&relay, "default").await.failed, 2);
    assert_eq!(relay.store.retry_failed(&Selection::Ids(vec![all[3].id])).await.expect("retry"), 0);
    assert_eq!(discard(&relay, Selection::Queue("default".into())).await, 2);
    assert_eq!(discard(&relay, Selection::All).await, 1);
    assert_eq!(relay.expect_empty().await, None);
    h.age(relay.policy.keep_for * 2).await;
    assert_eq!(relay.store.purge(&relay.policy, 100).await.expect("purge"), 3);
}

/// Retention takes delivered rows that have outlived it, a limited number at a time, and no FAILED row.
pub async fn retention_takes_delivered_rows(h: &dyn Harness) {
    let rows: Vec<_> = (0..10).map(|n| row(&format!("K{n}"), "x")).collect();
    insert(h, &rows).await;
    insert(h, &[row("A", "other").queue("other")]).await;
    let mut relay = Relay::new(h, 10).await;
    let claim = relay.rows().await;
    let mut verdicts = vec![published(); 10];
    verdicts[3] = failed();
    relay.settle(&claim, &verdicts).await;
    let mut other = Relay::with(h, |policy| policy.name = "other".to_owned()).await;
    assert_eq!(other.drain().await, ["other"]);
    let policy = std::sync::Arc::clone(&relay.policy);
    let store = std::sync::Arc::clone(&relay.store);
    let purge = async |limit| store.purge(&policy, limit).await.expect("purge");
    assert_eq!(purge(100).await, 0);
    h.age(relay.policy.keep_for + HOUR).await;
    insert(h, &[row("N", "new"), row("W", "waits")]).await;
    let claim = relay.expect(&["new", "waits"]).await;
    relay.settle(&claim, &[published(), release()]).await;
    assert_eq!(purge(4).await, 4);
    let mut purged = 0;
    for _ in 0..10 {
        purged += purge(4).await;
    }
    assert_eq!(purged, 5);
    let mut left: Vec<_> = h.rows().await.into_iter().map(|row| (row.label, row.status)).collect();
    left.sort();
    let expected = [("new", "PUBLISHED"), ("other", "PUBLISHED"), ("waits", "PENDING"), ("x", "FAILED")];
    assert_eq!(left, expected.map(|(label, status)| (label.to_owned(), status.to_owned())));
}

/// FAILED rows go only when the queue says for how long they are kept.
pub async fn failed_keep_for_takes_failed_rows(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("B", "B1")]).await;
    let mut relay = Relay::with(h, |policy| policy.failed_keep_for = Some(HOUR * 48)).await;
    let claim = relay.rows().await;
    relay.settle(&claim, &[failed(), published()]).await;
    h.age(HOUR * 25).await;
    assert_eq!(relay.store.purge(&relay.policy, 100).await.expect("purge"), 1);
    h.age(HOUR * 25).await;
    assert_eq!(relay.store.purge(&relay.policy, 100).await.expect("purge"), 1);
    assert_eq!(h.rows().await, []);
}

/// The view of rows in flight shows who has what until when.
pub async fn in_flight_view(h: &dyn Harness) {
    let seqs = insert(h, &[row("A", "A1"), row("B", "B1")]).await;
    let mut relay = Relay::with(h, |policy| (policy.batch, policy.lease) = (1, HOUR)).await;
    let claim = relay.expect(&["A1"]).await;
    let in_flight = h.in_flight().await;
    assert_eq!(in_flight.iter().map(|(seq, ..)| *seq).collect::<Vec<_>>(), seqs[..1]);
    assert!(in_flight[0].2 > HOUR / 2 && in_flight[0].2 <= HOUR);
    relay.publish(&claim).await;
    assert_eq!(h.in_flight().await, []);
}

/// A database without tables says so, is migrated once, and then has what this binary needs.
pub async fn migrations_run_once(h: &dyn Harness) {
    let store = h.unmigrated().await;
    assert_eq!(store.schema_state().await.expect("state"), SchemaState::Missing);
    let applied = store.migrate().await.expect("migrate");
    assert!(!applied.is_empty() && applied.is_sorted());
    let newest = applied[applied.len() - 1];
    assert_eq!(store.schema_state().await.expect("state"), SchemaState::Current { applied: newest });
    assert_eq!(store.migrate().await.expect("migrate"), [0; 0]);
    store.register_queues(&["default"]).await.expect("usable");
    store.close().await;
}

/// The WAL can be moved into the database while a relay works, where there is such a thing.
pub async fn checkpoint_beside_work(h: &dyn Harness) {
    insert(h, &[row("A", "A1")]).await;
    let mut relay = Relay::new(h, 10).await;
    let claim = relay.expect(&["A1"]).await;
    let checkpoint = relay.store.checkpoint().await.expect("checkpoint");
    assert_eq!(checkpoint.is_some(), !h.concurrent_writers());
    if let Some(checkpoint) = checkpoint {
        assert!(checkpoint.checkpointed_frames <= checkpoint.wal_frames);
    }
    relay.publish(&claim).await;
    assert_eq!(h.rows().await[0].status, "PUBLISHED");
}
