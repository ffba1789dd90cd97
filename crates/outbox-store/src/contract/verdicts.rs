//! What each verdict leaves in the row.

use std::time::Duration;

use super::{Available, Harness, Relay, When, insert, published, release, retry, row};
use crate::{OnFailed, Published, Verdict};

fn failed(error: &str) -> Verdict {
    Verdict::Failed { error: error.to_owned() }
}

/// A kept row says where it went; a deleted one is gone.
pub async fn published_rows_are_kept_or_deleted(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("B", "B1")]).await;
    let mut relay = Relay::new(h, 10).await;
    let claim = relay.expect(&["A1", "B1"]).await;
    let receipts =
        [Verdict::Published { receipt: Some("orders/3@42".into()) }, Verdict::Published { receipt: None }];
    relay.settle(&claim, &receipts).await;
    let rows = h.rows().await;
    assert_eq!((rows[0].receipt.as_deref(), rows[1].receipt.as_deref()), (Some("orders/3@42"), None));
    assert!(rows.iter().all(|row| row.status == "PUBLISHED"
        && row.settled
        && !row.failed
        && row.available == Available::Ready));
    assert_eq!(h.claims().await, [0; 0]);

    let mut deleting = Relay::with(h, |policy| policy.published = Published::Delete).await;
    insert(h, &[row("A", "A2"), row("A", "A3"), row("B", "B2")]).await;
    let claim = deleting.expect(&["A2", "A3", "B2"]).await;
    deleting.settle(&claim, &[published(), retry(), published()]).await;
    let rows = h.rows().await;
    let left: Vec<_> = rows[2..].iter().map(|row| row.label.as_str()).collect();
    assert_eq!(left, ["A3"]);
    h.make_due(&[]).await;
    assert_eq!(deleting.drain().await, ["A3"]);
    assert_eq!(h.rows().await.len(), 2);
    assert_eq!(h.blocks().await, []);
}

/// Failed: visible with its reason; under `skip` the key goes on.
pub async fn failed_row_is_skipped(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("A", "A2")]).await;
    let mut relay = Relay::new(h, 10).await;
    let claim = relay.expect(&["A1", "A2"]).await;
    relay.settle(&claim, &[failed("header with a line break"), release()]).await;
    let rows = h.rows().await;
    assert_eq!(
        (rows[0].status.as_str(), rows[0].last_error.as_deref()),
        ("FAILED", Some("header with a line break"))
    );
    assert!(rows[0].settled && rows[0].failed && rows[0].claim_token.is_none());
    assert_eq!(h.blocks().await, []);
    assert_eq!(relay.drain().await, ["A2"]);
}

/// Failed under `block`: the key waits; an operator's retry keeps the row's place.
pub async fn failed_row_blocks_until_it_is_retried(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("A", "A2"), row("B", "B1")]).await;
    let mut relay = Relay::with(h, |policy| policy.on_failed = OnFailed::Block).await;
    let claim = relay.expect(&["A1", "A2", "B1"]).await;
    relay.settle(&claim, &[failed("no"), release(), published()]).await;
    insert(h, &[row("A", "A3"), row("B", "B2")]).await;
    assert_eq!(relay.drain().await, ["B2"]);
    let blocks = h.blocks().await;
    assert_eq!((blocks.len(), blocks[0].released), (1, false));
    assert_eq!(relay.store.retry_failed(&crate::Selection::All).await.expect("retry"), 1);
    let row = &h.rows().await[0];
    assert_eq!((row.status.as_str(), row.retry_count, row.lost_count), ("PENDING", 0, 0));
    assert!(!row.settled && !row.failed);
    assert_eq!(row.last_error.as_deref(), Some("no"), "tells a retried row from a delayed one");
    assert_eq!(relay.drain().await, ["A1", "A2", "A3"]);
    assert_eq!(h.blocks().await, []);
}

/// Failed under `block`, retried and failed again: the key still waits.
pub async fn failed_row_blocks_again(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("A", "A2")]).await;
    let mut relay = Relay::with(h, |policy| policy.on_failed = OnFailed::Block).await;
    let claim = relay.expect(&["A1", "A2"]).await;
    relay.settle(&claim, &[failed("no"), release()]).await;
    for _ in 0..2 {
        relay.expect_nothing().await;
        assert_eq!(
            relay.store.retry_failed(&crate::Selection::Queue("default".into())).await.expect("retry"),
            1
        );
        let claim = relay.expect(&["A1"]).await;
        relay.settle_all(&claim, failed("still no")).await;
    }
    relay.expect_nothing().await;
    assert_eq!(relay.store.discard_failed(&crate::Selection::All).await.expect("discard"), 1);
    assert_eq!(relay.drain().await, ["A2"]);
    assert_eq!(h.blocks().await, []);
}

/// A follower that fails under `block` stops its key there, while those before it go.
pub async fn failed_follower_blocks(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("A", "A2"), row("A", "A3"), row("A", "A4")]).await;
    let mut relay = Relay::with(h, |policy| (policy.on_failed, policy.batch) = (OnFailed::Block, 1)).await;
    let claim = relay.expect(&["A1"]).await;
    relay.settle_all(&claim, retry()).await;
    relay.expect_empty().await;
    h.make_due(&[]).await;
    let claim = relay.expect(&["A1"]).await;
    relay.publish(&claim).await;
    let claim = relay.expect(&["A2"]).await;
    relay.publish(&claim).await;
    let claim = relay.expect(&["A3"]).await;
    relay.settle_all(&claim, failed("no")).await;
    relay.expect_nothing().await;
    assert_eq!(relay.store.discard_failed(&crate::Selection::All).await.expect("discard"), 1);
    assert_eq!(relay.drain().await, ["A4"]);
    assert_eq!(h.blocks().await, []);
}

/// Released rows are found again by the relay that released them, each kind where it was.
pub async fn released_rows_are_found_again(h: &dyn Harness) {
    let hour = Duration::from_secs(3600);
    insert(
        h,
        &[
            row("A", "A1"),
            row("A", "A2"),
            row("D", "D1").when(When::In(hour)),
            row("R", "R1"),
            row("R", "R2"),
        ],
    )
    .await;
    let mut relay = Relay::new(h, 64).await;
    let claim = relay.expect(&["A1", "A2", "R1", "R2"]).await;
    relay.settle(&claim, &[release(), release(), retry(), release()]).await;
    h.make_due(&[]).await;
    for _ in 0..3 {
        let claim = relay.expect(&["A1", "A2", "D1", "R1"]).await;
        relay.settle_all(&claim, release()).await;
    }
    let claim = relay.expect(&["A1", "A2", "D1", "R1"]).await;
    relay.publish(&claim).await;
    for _ in 0..3 {
        let claim = relay.expect(&["R2"]).await;
        relay.settle_all(&claim, release()).await;
    }
    assert_eq!(relay.drain().await, ["R2"]);
    let rows = h.rows().await;
    assert_eq!(rows.iter().map(|row| row.retry_count).collect::<Vec<_>>(), [0, 0, 0, 1, 0]);
    assert!(rows.iter().all(|row| row.lost_count == 0));
}

/// A prefix is delivered, the rest released: what follows keeps its order.
pub async fn released_tail_keeps_its_order(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("A", "A2"), row("A", "A3"), row("A", "A4")]).await;
    let mut relay = Relay::new(h, 3).await;
    let claim = relay.expect(&["A1", "A2", "A3"]).await;
    relay.settle(&claim, &[published(), release(), release()]).await;
    assert_eq!(relay.drain().await, ["A2", "A3", "A4"]);
}

/// Every kind of verdict in one settle.
pub async fn all_verdicts_in_one_settle(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("B", "B1"), row("C", "C1"), row("D", "D1"), row("E", "E1")]).await;
    let mut relay = Relay::new(h, 10).await;
    let claim = relay.rows().await;
    let hold = Verdict::Hold { after: Duration::from_secs(3600), error: "no topic".into() };
    relay.settle(&claim, &[published(), retry(), hold, failed("bad"), release()]).await;
    let rows = h.rows().await;
    let statuses: Vec<_> = rows.iter().map(|row| row.status.as_str()).collect();
    assert_eq!(statuses, ["PUBLISHED", "PENDING", "PENDING", "FAILED", "PENDING"]);
    assert!(rows.iter().all(|row| row.claim_token.is_none() || row.status == "PUBLISHED"));
    assert_eq!(h.blocks().await.len(), 2);
    assert_eq!(h.claims().await, [0; 0]);
    assert_eq!(relay.drain().await, ["E1"]);
}

/// A delay beyond anything a timestamp can hold is still a time, not infinity: the row falls due when it is made to.
pub async fn backoff_saturates(h: &dyn Harness) {
    let seqs = insert(h, &[row("A", "A1"), row("B", "B1"), row("C", "C1"), row("C", "C2")]).await;
    for &seq in &seqs {
        h.set_counts(seq, i64::from(i32::MAX) - 1, 0).await;
    }
    let mut relay = Relay::new(h, 3).await;
    let claim = relay.expect(&["A1", "B1", "C1"]).await;
    let years = |n: u64| Duration::from_secs(n * 365 * 24 * 3600);
    let retry = |after| Verdict::Retry { after, error: "down".into() };
    relay.settle(&claim, &[retry(Duration::MAX), retry(years(100_000)), retry(years(1_000))]).await;
    relay.expect_empty().await;
    let rows = h.rows().await;
    assert!(rows[..3].iter().all(|row| row.retry_count == i64::from(i32::MAX)));
    for row in &rows[..3] {
        let Available::Later(seconds) = row.available else { panic!("{} is {:?}", row.label, row.available) };
        assert!(seconds > 365 * 24 * 3600, "{} is due in {seconds} s", row.label);
    }
    h.make_due(&[]).await;
    let claim = relay.expect(&["A1", "B1", "C1"]).await;
    assert_eq!(claim.events[0].retry_count, i32::MAX as u32);
    // Once more, at the very end of the counter.
    relay.settle_all(&claim, retry(Duration::ZERO)).await;
    assert!(h.rows().await[..3].iter().all(|row| row.retry_count == i64::from(i32::MAX)));
    assert_eq!(relay.drain().await, ["A1", "B1", "C1", "C2"]);
}

/// The store charges what it is told: the pipeline counts retries, and the row's count and bound come with the claim.
pub async fn retries_are_counted_until_given_up(h: &dyn Harness) {
    insert(h, &[row("A", "A1").max_retries(2), row("A", "A2")]).await;
    let mut relay = Relay::new(h, 1).await;
    for retry_count in 0..3 {
        let claim = relay.expect(&["A1"]).await;
        let event = &claim.events[0];
        assert_eq!((event.retry_count, event.max_retries, event.lost_count), (retry_count, Some(2), 0));
        let verdict = if retry_count == 2 { failed("nack") } else { retry() };
        relay.settle_all(&claim, verdict).await;
        h.make_due(&[]).await;
    }
    assert_eq!(relay.drain().await, ["A2"]);
    let rows = h.rows().await;
    assert_eq!((rows[0].status.as_str(), rows[0].last_error.as_deref()), ("FAILED", Some("nack")));
}
