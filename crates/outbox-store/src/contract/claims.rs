//! What a claim takes, and what it says when it takes nothing.

use std::time::Duration;

use super::{Available, Harness, Relay, When, insert, labels, row};
use crate::Claimed;

/// Nothing there: Empty, and no time to wait for.
pub async fn empty_queue(h: &dyn Harness) {
    let mut relay = Relay::new(h, 10).await;
    assert_eq!(relay.expect_empty().await, None);
    insert(h, &[row("A", "A1").queue("another")]).await;
    assert_eq!(relay.expect_empty().await, None);
}

/// Rows of one transaction have equal timestamps; seq alone orders them.
pub async fn equal_timestamps(h: &dyn Harness) {
    let expected: Vec<_> = (0..40).map(|n| format!("A{n:02}")).collect();
    let rows: Vec<_> = expected.iter().map(|label| row("A", label)).collect();
    insert(h, &rows).await;
    let mut relay = Relay::new(h, 7).await;
    let mut seqs = Vec::new();
    let mut delivered = Vec::new();
    while let Claimed::Rows(claim) = relay.claim().await {
        seqs.extend(claim.events.iter().map(|event| event.seq));
        delivered.extend(labels(&claim.events).into_iter().map(str::to_owned));
        relay.publish(&claim).await;
    }
    assert_eq!(delivered, expected);
    assert!(seqs.is_sorted());
}

/// A claim takes at most a batch, oldest first, and dates itself by the database's clock.
pub async fn batch_is_the_limit(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("B", "B1"), row("A", "A2"), row("C", "C1")]).await;
    let mut relay = Relay::new(h, 3).await;
    let before = std::time::Instant::now();
    let first = relay.expect(&["A1", "B1", "A2"]).await;
    assert!(first.sent_at >= before && first.sent_at <= std::time::Instant::now());
    assert!(first.claimed_at >= first.events[0].created_at);
    let second = relay.expect(&["C1"]).await;
    assert_ne!(first.token, second.token);
    relay.expect_held().await;
    relay.publish(&second).await;
    relay.publish(&first).await;
    assert_eq!(relay.expect_empty().await, None);
}

/// While a row is in flight nobody gets another row of its key.
pub async fn key_in_flight_is_taken(h: &dyn Harness) {
    insert(h, &[row("A", "A1")]).await;
    let (mut first, mut second) = (Relay::new(h, 10).await, Relay::new(h, 10).await);
    let claim = first.expect(&["A1"]).await;
    insert(h, &[row("A", "A2"), row("B", "B1")]).await;
    let other = second.expect(&["B1"]).await;
    second.expect_held().await;
    first.expect_held().await;
    first.publish(&claim).await;
    second.publish(&other).await;
    assert_eq!(second.drain().await, ["A2"]);
}

/// The key is the pair: another aggregate type with the same id, or the same key in another queue, is free.
pub async fn key_is_type_and_id_within_a_queue(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("A", "elsewhere").queue("other")]).await;
    let mut relay = Relay::new(h, 10).await;
    let _in_flight = relay.expect(&["A1"]).await;
    let mut invoice = row("A", "invoice");
    invoice.aggregate_type = "Invoice".to_owned();
    insert(h, &[row("A", "A2"), invoice]).await;
    relay.expect(&["invoice"]).await;
    let mut other = Relay::with(h, |policy| policy.name = "other".to_owned()).await;
    other.expect(&["elsewhere"]).await;
}

/// A hot key in flight does not starve the free keys far behind it: the window grows until it finds them.
pub async fn hot_key_in_flight_with_free_keys_behind(h: &dyn Harness) {
    let mut rows: Vec<_> = (0..150).map(|n| row("A", &format!("A{n:03}"))).collect();
    rows.extend((0..4).map(|n| row(&format!("B{n}"), &format!("B{n}"))));
    insert(h, &rows).await;
    let (mut first, mut second) = (Relay::new(h, 4).await, Relay::new(h, 4).await);
    let hot = first.expect(&["A000", "A001", "A002", "A003"]).await;
    let free = second.expect(&["B0", "B1", "B2", "B3"]).await;
    second.expect_held().await;
    first.expect_held().await;
    second.publish(&free).await;
    first.publish(&hot).await;
    let rest: Vec<_> = (4..150).map(|n| format!("A{n:03}")).collect();
    assert_eq!(second.drain().await, rest);
}

/// A due row whose place lies beyond a ready window that was cut off would overtake rows of its key that the window
/// does not show: it waits for a later claim.
pub async fn due_row_beyond_a_cut_off_window_waits(h: &dyn Harness) {
    insert(h, &[row("H", "H1"), row("H", "H2")]).await;
    let (mut first, mut second) = (Relay::new(h, 4).await, Relay::new(h, 4).await);
    let hot = first.expect(&["H1", "H2"]).await;
    let late = When::In(Duration::from_secs(3600));
    insert(h, &[row("B", "B1"), row("B", "B2"), row("A", "A1"), row("A", "A2").when(late)]).await;
    h.make_due(&[]).await;
    let claim = second.rows().await;
    assert_eq!(labels(&claim.events)[..2], ["B1", "B2"]);
    assert_ne!(labels(&claim.events).get(2), Some(&"A2"), "the due row overtakes A1");
    second.publish(&claim).await;
    first.publish(&hot).await;
    let mut rest = second.drain().await;
    rest.retain(|label| label.starts_with('A'));
    let mut all: Vec<_> = labels(&claim.events).into_iter().filter(|label| label.starts_with('A')).collect();
    all.extend(rest.iter().map(String::as_str));
    assert_eq!(all, ["A1", "A2"]);
}

/// A time that has already passed when the row is inserted means ready, also in a transaction that is older than the
/// last look at the due rows.
pub async fn available_at_already_past_at_insert(h: &dyn Harness) {
    insert(h, &[row("D", "D1").when(When::In(Duration::from_secs(3600)))]).await;
    let mut relay = Relay::new(h, 10).await;
    h.make_due(&[]).await;
    assert_eq!(relay.drain().await, ["D1"]);
    let past = When::Ago(Duration::from_secs(60));
    if h.concurrent_writers() {
        let mut early = h.begin().await;
        insert(h, &[row("D", "D2").when(When::In(Duration::from_secs(3600)))]).await;
        h.make_due(&[]).await;
        assert_eq!(relay.drain().await, ["D2"]);
        early.insert(&row("A", "A1").when(When::Ago(Duration::ZERO))).await;
        early.commit().await;
    } else {
        insert(h, &[row("A", "A1").when(When::Ago(Duration::ZERO))]).await;
    }
    insert(h, &[row("A", "A2").when(past), row("A", "A3")]).await;
    let claim = relay.expect(&["A1", "A2", "A3"]).await;
    relay.publish(&claim).await;
    let rows = h.rows().await;
    assert!(rows.iter().all(|row| row.status == "PUBLISHED"));
}

/// A paused queue gives nothing until it is resumed, and what is in flight is settled as usual.
pub async fn paused_queue(h: &dyn Harness) {
    insert(h, &[row("A", "A1")]).await;
    let mut relay = Relay::new(h, 10).await;
    let claim = relay.expect(&["A1"]).await;
    insert(h, &[row("A", "A2")]).await;
    relay.store.set_paused("default", true).await.expect("pause");
    assert!(matches!(relay.claim().await, Claimed::Paused));
    relay.publish(&claim).await;
    assert!(matches!(relay.claim().await, Claimed::Paused));
    relay.store.set_paused("default", false).await.expect("resume");
    assert_eq!(relay.drain().await, ["A2"]);
}

/// Rows that a stranger has locked make no claim wait: their keys are left out until the lock is gone.
pub async fn row_locked_by_a_stranger(h: &dyn Harness) {
    if !h.concurrent_writers() {
        return;
    }
    let seqs = insert(h, &[row("A", "A1"), row("A", "A2"), row("B", "B1")]).await;
    let mut relay = Relay::new(h, 10).await;
    let mut stranger = h.begin().await;
    stranger.lock_row(seqs[0]).await;
    let claim = relay.expect(&["B1"]).await;
    relay.publish(&claim).await;
    for _ in 0..3 {
        let claimed = relay.try_claim().await.expect("claim");
        assert!(matches!(claimed, Claimed::Busy), "expected Busy, got {claimed:?}");
    }
    stranger.rollback().await;
    let claim = relay.expect(&["A1", "A2"]).await;
    relay.publish(&claim).await;
    assert_eq!(relay.expect_empty().await, None);
}

/// A follower that a stranger has locked is left out as well, and so is a row that should be parked.
pub async fn follower_locked_by_a_stranger(h: &dyn Harness) {
    if !h.concurrent_writers() {
        return;
    }
    let seqs = insert(h, &[row("A", "A1"), row("A", "A2"), row("A", "A3")]).await;
    let mut relay = Relay::new(h, 1).await;
    let claim = relay.expect(&["A1"]).await;
    relay.settle_all(&claim, super::retry()).await;
    let mut stranger = h.begin().await;
    stranger.lock_row(seqs[1]).await;
    for _ in 0..3 {
        let claimed = relay.try_claim().await.expect("claim");
        assert!(!matches!(claimed, Claimed::Rows(_)), "got {claimed:?}");
    }
    stranger.rollback().await;
    relay.expect_empty().await;
    assert!(h.rows().await[1..].iter().all(|row| row.available == Available::Parked));
    h.make_due(&[]).await;
    let mut relay = Relay::new(h, 50).await;
    let claim = relay.expect(&["A1"]).await;
    relay.publish(&claim).await;
    let mut stranger = h.begin().await;
    stranger.lock_row(seqs[1]).await;
    let claimed = relay.try_claim().await.expect("claim");
    assert!(!matches!(claimed, Claimed::Rows(_)), "A2 is locked and A3 comes after it, got {claimed:?}");
    stranger.rollback().await;
    assert_eq!(relay.drain().await, ["A2", "A3"]);
}

/// A claim does not wait for another claimer's lock either.
pub async fn locked_queue_is_busy(h: &dyn Harness) {
    if !h.concurrent_writers() {
        return;
    }
    insert(h, &[row("A", "A1")]).await;
    let mut relay = Relay::new(h, 10).await;
    let mut other = h.begin().await;
    other.lock_queue("default").await;
    let claimed = relay.try_claim().await.expect("claim");
    assert!(matches!(claimed, Claimed::Busy), "expected Busy, got {claimed:?}");
    other.rollback().await;
    relay.expect(&["A1"]).await;
}

/// The queue's lock of one queue is nobody else's.
pub async fn queues_do_not_meet(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("A", "other").queue("other")]).await;
    let mut relay = Relay::new(h, 10).await;
    let mut other = Relay::with(h, |policy| policy.name = "other".to_owned()).await;
    relay.store.set_paused("default", true).await.expect("pause");
    let claim = other.expect(&["other"]).await;
    assert!(matches!(relay.claim().await, Claimed::Paused));
    h.expire_claims().await;
    assert!(relay.sweep().await.is_empty(), "swept another queue's claim");
    assert_eq!(other.try_settle(&claim, &[super::published()]).await, crate::Settled::Done);
}

/// Waiting ends when a row is committed, long before its limit.
pub async fn wait_ends_with_a_new_row(h: &dyn Harness) {
    let policy = std::sync::Arc::new(crate::QueuePolicy::named("default"));
    let store = h.store().await;
    store.register_queues(&["default"]).await.expect("register");
    let mut claimer = store.claimer(policy);
    assert!(matches!(claimer.claim().await.expect("claim"), Claimed::Empty { next_due: None }));
    let waiting = tokio::spawn(async move {
        let end = std::time::Instant::now() + Duration::from_secs(30);
        // Early returns are allowed: whoever waits claims and waits again.
        loop {
            claimer.wait(Duration::from_secs(600)).await;
            match claimer.claim().await.expect("claim") {
                Claimed::Rows(claim) => break claim.events.len(),
                _ => assert!(std::time::Instant::now() < end, "no row seen"),
            }
        }
    });
    insert(h, &[row("A", "A1")]).await;
    let seen = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    assert_eq!(seen.expect("wait did not end").expect("claimer"), 1);
}
