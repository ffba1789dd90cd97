//! Transactions that draw their seq early and commit late.
//!
//! Where there is one writer at a time these hold trivially, but the same rules are asked for: nothing of an open
//! transaction is delivered, and afterwards the order is right.

use super::{Block, Harness, Relay, insert, labels, retry, row};
use crate::{Claimed, StoreError};

/// Rows of an open transaction are not seen, rows that are rolled back never are.
pub async fn nothing_of_an_open_transaction(h: &dyn Harness) {
    let mut relay = Relay::new(h, 10).await;
    let mut open = h.begin().await;
    open.insert(&row("A", "phantom")).await;
    match relay.try_claim().await {
        Ok(Claimed::Rows(claim)) => panic!("claimed {:?}", labels(&claim.events)),
        Ok(Claimed::Empty { .. } | Claimed::Busy) | Err(StoreError::Conflict(_)) => {}
        other => panic!("{other:?}"),
    }
    open.rollback().await;
    insert(h, &[row("A", "A1")]).await;
    assert_eq!(relay.drain().await, ["A1"]);
}

/// A key's writer draws its seq, other keys move on, it commits, and its next transaction commits at once after: the
/// key's rows arrive in order and the others are not held up.
pub async fn late_commit_keeps_its_place(h: &dyn Harness) {
    if !h.concurrent_writers() {
        return;
    }
    let mut relay = Relay::new(h, 10).await;
    insert(h, &[row("B", "B0")]).await;
    let mut late = h.begin().await;
    late.insert(&row("A", "A1")).await;
    for n in 1..30 {
        let label = format!("B{n}");
        insert(h, &[row("B", &label)]).await;
        let delivered = relay.drain().await;
        assert_eq!(delivered.last(), Some(&label), "other keys are held up");
    }
    late.commit().await;
    insert(h, &[row("A", "A2"), row("B", "B30")]).await;
    assert_eq!(relay.drain().await, ["A1", "A2", "B30"]);
}

/// The same with the late row committed alone: it is found although every scan has passed it.
pub async fn late_commit_is_found(h: &dyn Harness) {
    if !h.concurrent_writers() {
        return;
    }
    let (mut relay, mut other) = (Relay::new(h, 10).await, Relay::new(h, 10).await);
    for round in 0..5 {
        let mut late = h.begin().await;
        late.insert(&row("A", "late")).await;
        insert(h, &[row("B", "B1")]).await;
        assert_eq!(relay.drain().await, ["B1"]);
        assert_eq!(other.drain().await, [""; 0]);
        insert(h, &[row("B", "B2")]).await;
        assert_eq!(other.drain().await, ["B2"]);
        late.commit().await;
        let delivered = if round % 2 == 0 { relay.drain().await } else { other.drain().await };
        assert_eq!(delivered, ["late"]);
    }
}

/// Many open transactions that end in another order than they began.
pub async fn late_commits_in_any_order(h: &dyn Harness) {
    if !h.concurrent_writers() {
        return;
    }
    let mut relay = Relay::new(h, 10).await;
    let mut open = Vec::new();
    for n in 0..8 {
        let mut late = h.begin().await;
        late.insert(&row(&format!("L{n}"), "first")).await;
        insert(h, &[row("B", "B")]).await;
        assert_eq!(relay.drain().await, ["B"]);
        open.push((format!("L{n}"), late));
    }
    for turn in [3, 0, 5, 2, 1, 2, 0, 0] {
        let (key, late) = open.remove(turn.min(open.len() - 1));
        late.commit().await;
        insert(h, &[row(&key, "second"), row("B", "B")]).await;
        let claim = relay.expect(&["first", "second", "B"]).await;
        relay.publish(&claim).await;
    }
}

/// A transaction that began after the newest one that has ended lies beyond the snapshot's list of running ones, and
/// may have drawn an earlier seq than a row that is already visible.
pub async fn younger_transaction_draws_an_earlier_seq(h: &dyn Harness) {
    if !h.concurrent_writers() {
        return;
    }
    let mut relay = Relay::new(h, 10).await;
    for _ in 0..20 {
        let mut older = h.begin().await;
        // Gives it its id, and leaves no row that would hold the scan's start down.
        older.insert(&row("C", "C1").queue("other")).await;
        let mut younger = h.begin().await;
        younger.insert(&row("A", "A1")).await;
        older.insert(&row("B", "B1")).await;
        older.commit().await;
        assert_eq!(relay.drain().await, ["B1"]);
        younger.commit().await;
        insert(h, &[row("A", "A2")]).await;
        assert_eq!(relay.drain().await, ["A1", "A2"]);
    }
}

/// A delayed row that commits late and is due at once is found although the due rows were looked through before.
pub async fn late_commit_of_a_due_row(h: &dyn Harness) {
    if !h.concurrent_writers() {
        return;
    }
    let hour = std::time::Duration::from_secs(3600);
    let mut relay = Relay::new(h, 10).await;
    let mut late = h.begin().await;
    // Due some milliseconds after its insert: not in the past then, but before the next looks at the due rows.
    late.insert(&row("A", "A1").when(super::When::In(std::time::Duration::from_millis(20)))).await;
    insert(h, &[row("D", "D1").when(super::When::In(hour))]).await;
    tokio::time::sleep(std::time::Duration::from_millis(40)).await;
    h.make_due(&[]).await;
    assert_eq!(relay.drain().await, ["D1"]);
    late.commit().await;
    assert_eq!(relay.drain().await, ["A1"]);
}

/// A row below a held head commits late: it goes first, and when it is retried as well it is the hold.
pub async fn head_displaced_by_a_late_row(h: &dyn Harness) {
    if !h.concurrent_writers() {
        return;
    }
    let mut relay = Relay::new(h, 10).await;
    let mut late = h.begin().await;
    let first = late.insert(&row("A", "A1")).await;
    let second = insert(h, &[row("A", "A2"), row("A", "A3")]).await[0];
    let claim = relay.expect(&["A2", "A3"]).await;
    relay.settle(&claim, &[retry(), super::release()]).await;
    relay.expect_empty().await;
    assert_eq!(h.blocks().await, [Block { key: "A".into(), hold_after: second, released: false }]);
    late.commit().await;
    let claim = relay.expect(&["A1"]).await;
    relay.settle_all(&claim, retry()).await;
    assert_eq!(h.blocks().await, [Block { key: "A".into(), hold_after: first, released: false }]);
    h.make_due(&[second]).await;
    relay.expect_empty().await;
    h.make_due(&[first]).await;
    assert_eq!(relay.drain().await, ["A1", "A2", "A3"]);
    assert_eq!(h.blocks().await, []);
}

/// A late row that lands among followers that are already on their way out still goes before those behind it.
pub async fn late_row_among_released_followers(h: &dyn Harness) {
    if !h.concurrent_writers() {
        return;
    }
    insert(h, &[row("A", "A1")]).await;
    let mut relay = Relay::new(h, 1).await;
    let claim = relay.expect(&["A1"]).await;
    relay.settle_all(&claim, retry()).await;
    let mut late = h.begin().await;
    late.insert(&row("A", "A2")).await;
    insert(h, &[row("A", "A3"), row("A", "A4")]).await;
    relay.expect_empty().await;
    h.make_due(&[]).await;
    let claim = relay.expect(&["A1"]).await;
    relay.publish(&claim).await;
    let claim = relay.expect(&["A3"]).await;
    late.commit().await;
    relay.publish(&claim).await;
    let mut rest = relay.drain().await;
    rest.sort();
    assert_eq!(rest, ["A2", "A4"]);
    assert_eq!(h.blocks().await, []);
}
