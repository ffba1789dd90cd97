//! Queues with `ordering = "none"`.

use std::time::Duration;

use super::{Available, Harness, Relay, When, insert, labels, published, release, retry, row};
use crate::{Claimed, Ordering};

async fn unordered(h: &dyn Harness, batch: u32) -> Relay {
    Relay::with(h, |policy| (policy.ordering, policy.batch) = (Ordering::None, batch)).await
}

/// Urgent rows first, equal ones by age.
pub async fn urgent_rows_go_first(h: &dyn Harness) {
    let mut rows: Vec<_> = (0..6).map(|n| row("A", &format!("p0-{n}"))).collect();
    rows.extend([row("A", "p5-0").priority(5), row("B", "p9").priority(9), row("A", "p5-1").priority(5)]);
    insert(h, &rows).await;
    let mut relay = unordered(h, 4).await;
    let claim = relay.expect(&["p9", "p5-0", "p5-1", "p0-0"]).await;
    let rest = relay.expect(&["p0-1", "p0-2", "p0-3", "p0-4"]).await;
    relay.publish(&claim).await;
    relay.publish(&rest).await;
    assert_eq!(relay.drain().await, ["p0-5"]);
}

/// A row in retry, in flight or failed holds nothing of its key back.
pub async fn retry_holds_nothing_back(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("A", "A2"), row("A", "A3")]).await;
    let (mut relay, mut other) = (unordered(h, 1).await, unordered(h, 1).await);
    let first = relay.expect(&["A1"]).await;
    let second = other.expect(&["A2"]).await;
    relay.settle_all(&first, retry()).await;
    let third = relay.expect(&["A3"]).await;
    other.settle_all(&second, crate::Verdict::Failed { error: "no".into() }).await;
    relay.publish(&third).await;
    let next_due = relay.expect_empty().await;
    assert!(
        next_due.is_some_and(|due| due > Duration::from_secs(1800) && due <= Duration::from_secs(3600)),
        "{next_due:?}"
    );
    assert_eq!(h.blocks().await, []);
    h.make_due(&[]).await;
    let claim = relay.expect(&["A1"]).await;
    assert_eq!((claim.events[0].retry_count, claim.events[0].is_hold), (1, false));
    relay.publish(&claim).await;
    relay.expect_empty().await;
}

/// Delays, releases, lost claims and their weights work as in an ordered queue.
pub async fn lease_and_delay_without_order(h: &dyn Harness) {
    let delayed = When::In(Duration::from_secs(3600));
    insert(h, &[row("A", "A1"), row("A", "A2"), row("A", "delayed").when(delayed)]).await;
    let mut relay = unordered(h, 64).await;
    let claim = relay.expect(&["A1", "A2"]).await;
    relay.settle(&claim, &[release(), published()]).await;
    relay.expect(&["A1"]).await;
    assert!(relay.sweep().await.is_empty());
    h.expire_claims().await;
    let swept = relay.sweep().await;
    assert_eq!((swept.len(), swept[0].recovered), (1, 1));
    assert_eq!(h.rows().await[0].lost_count, 1);
    h.make_due(&[]).await;
    let claim = relay.rows().await;
    let mut taken = labels(&claim.events);
    taken.sort_unstable();
    assert_eq!(taken, ["A1", "delayed"]);
    relay.settle_all(&claim, release()).await;
    assert!(h.rows().await.iter().all(|row| row.available != Available::Parked));
    assert_eq!(relay.drain().await.len(), 2);
    relay.store.set_paused("default", true).await.expect("pause");
    assert!(matches!(relay.claim().await, Claimed::Paused));
}

/// An operator's retry brings a failed row back, and orphans are found too.
pub async fn failed_and_orphaned_without_order(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("A", "A2")]).await;
    let mut relay = unordered(h, 1).await;
    let claim = relay.expect(&["A1"]).await;
    relay.settle_all(&claim, crate::Verdict::Failed { error: "no".into() }).await;
    relay.expect(&["A2"]).await;
    h.forget_claims().await;
    h.age(relay.policy.lease * 2).await;
    assert_eq!(relay.store.recover_orphans(&relay.policy).await.expect("recover"), 1);
    assert_eq!(relay.store.retry_failed(&crate::Selection::All).await.expect("retry"), 1);
    let mut delivered = relay.drain().await;
    delivered.sort();
    assert_eq!(delivered, ["A1", "A2"]);
}

/// Rows that a stranger has locked are left out, and nothing waits for them.
pub async fn stranger_without_order(h: &dyn Harness) {
    if !h.concurrent_writers() {
        return;
    }
    let seqs = insert(h, &[row("A", "A1"), row("A", "A2")]).await;
    let mut relay = unordered(h, 10).await;
    let mut stranger = h.begin().await;
    stranger.lock_row(seqs[0]).await;
    let claim = relay.expect(&["A2"]).await;
    stranger.rollback().await;
    relay.publish(&claim).await;
    assert_eq!(relay.drain().await, ["A1"]);
}
