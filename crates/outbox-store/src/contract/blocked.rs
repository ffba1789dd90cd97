//! Keys whose head is retried, their followers, and how they are let out.

use std::time::Duration;

use super::{Available, Block, Harness, Relay, Row, When, insert, labels, published, release, retry, row};
use crate::{Claimed, Event, Verdict};

const HOUR: Duration = Duration::from_secs(3600);

fn find<'a>(rows: &'a [Row], label: &str) -> &'a Row {
    rows.iter().find(|row| row.label == label).unwrap_or_else(|| panic!("no row {label}"))
}

fn block(key: &str, hold_after: i64, released: bool) -> Block {
    Block { key: key.to_owned(), hold_after, released }
}

/// A retried row waits for its time, its key waits behind it, other keys go on.
pub async fn retry_holds_the_key_and_nothing_else(h: &dyn Harness) {
    let seqs = insert(h, &[row("A", "A1"), row("A", "A2"), row("B", "B1")]).await;
    let mut relay = Relay::new(h, 10).await;
    let claim = relay.expect(&["A1", "A2", "B1"]).await;
    assert!(claim.events.iter().all(|event| !event.is_hold));
    relay.settle(&claim, &[retry(), release(), published()]).await;
    insert(h, &[row("A", "A3"), row("B", "B2")]).await;
    let claim = relay.expect(&["B2"]).await;
    relay.publish(&claim).await;
    let next_due = relay.expect_empty().await.expect("a retried row has a time");
    assert!(next_due > HOUR / 2 && next_due <= HOUR, "due in {next_due:?}");

    let rows = h.rows().await;
    let head = find(&rows, "A1");
    assert_eq!((head.status.as_str(), head.retry_count, head.lost_count), ("PENDING", 1, 0));
    assert_eq!(head.last_error.as_deref(), Some("nack"));
    assert!(matches!(head.available, Available::Later(3000..=3600)), "{:?}", head.available);
    assert_eq!(head.claim_token, None);
    for follower in ["A2", "A3"] {
        let follower = find(&rows, follower);
        assert_eq!((follower.available, follower.retry_count), (Available::Parked, 0));
    }
    assert_eq!(h.blocks().await, [block("A", seqs[0], false)]);
}

/// When its head is delivered the key's followers go, in order, and the block with them.
pub async fn delivered_head_lets_followers_out(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("A", "A2"), row("A", "A3"), row("B", "B1")]).await;
    let mut relay = Relay::new(h, 3).await;
    let claim = relay.expect(&["A1", "A2", "A3"]).await;
    relay.settle(&claim, &[retry(), release(), release()]).await;
    let claim = relay.expect(&["B1"]).await;
    relay.publish(&claim).await;
    relay.expect_empty().await;
    h.make_due(&[]).await;
    let claim = relay.expect(&["A1"]).await;
    assert!(claim.events[0].is_hold, "the settle must know that it may release followers");
    assert_eq!(claim.events[0].retry_count, 1);
    relay.expect_held_or_empty().await;
    relay.publish(&claim).await;
    insert(h, &[row("A", "A4")]).await;
    assert_eq!(relay.drain().await, ["A2", "A3", "A4"]);
    assert_eq!(h.blocks().await, []);
}

/// The row after a delivered one fails: what is before it stays delivered, what is behind it waits.
pub async fn retry_in_the_middle_of_a_batch(h: &dyn Harness) {
    let seqs = insert(h, &[row("A", "A1"), row("A", "A2"), row("A", "A3")]).await;
    let mut relay = Relay::new(h, 10).await;
    let claim = relay.expect(&["A1", "A2", "A3"]).await;
    relay.settle(&claim, &[published(), retry(), release()]).await;
    relay.expect_empty().await;
    assert_eq!(h.blocks().await, [block("A", seqs[1], false)]);
    h.make_due(&[]).await;
    assert_eq!(relay.drain().await, ["A2", "A3"]);
}

/// Several non-acks of one key in one settle: the lowest one is the head, and each is retried in its turn.
pub async fn several_retries_of_one_key_in_one_settle(h: &dyn Harness) {
    let seqs = insert(h, &[row("A", "A1"), row("A", "A2"), row("A", "A3"), row("B", "B1")]).await;
    let mut relay = Relay::new(h, 10).await;
    let claim = relay.expect(&["A1", "A2", "A3", "B1"]).await;
    relay.settle(&claim, &[retry(), retry(), release(), retry()]).await;
    relay.expect_empty().await;
    assert_eq!(h.blocks().await, [block("A", seqs[0], false), block("B", seqs[3], false)]);
    h.make_due(&[]).await;
    let delivered = relay.drain().await;
    let of_a: Vec<_> = delivered.iter().filter(|label| label.starts_with('A')).collect();
    assert_eq!(of_a, ["A1", "A2", "A3"]);
    assert_eq!(h.blocks().await, []);
}

/// A long queue of followers: touched once while their head is retried again and again, then all out in order, and
/// the other keys go on all the time.
pub async fn many_followers_through_several_retries(h: &dyn Harness) {
    let mut rows = Vec::new();
    for n in 0..120 {
        rows.push(row("A", &format!("A{n:03}")));
        rows.push(row(&format!("K{}", n % 7), &format!("K{n:03}")));
    }
    insert(h, &rows).await;
    let mut relay = Relay::new(h, 16).await;
    let claim = relay.rows().await;
    let verdict = |event: &Event| match event.event_type.as_deref() {
        Some("A000") => retry(),
        _ if event.aggregate_id == "A" => release(),
        _ => published(),
    };
    let verdicts: Vec<_> = claim.events.iter().map(verdict).collect();
    relay.settle(&claim, &verdicts).await;
    let free = relay.drain().await;
    assert_eq!(free.len(), 120 - 8, "all rows of the other keys but those of the first batch");
    assert!(free.iter().all(|label| label.starts_with('K')));
    let parked: Vec<_> =
        h.rows().await.into_iter().filter(|row| row.key == "A" && row.label != "A000").collect();
    assert!(parked.iter().all(|row| row.available == Available::Parked));
    for attempt in 2..4 {
        h.make_due(&[]).await;
        let claim = relay.expect(&["A000"]).await;
        relay.settle_all(&claim, retry()).await;
        insert(h, &[row("K1", "more")]).await;
        assert_eq!(relay.drain().await, ["more"]);
        let rows = h.rows().await;
        assert_eq!(find(&rows, "A000").retry_count, attempt);
        let followers: Vec<_> =
            rows.into_iter().filter(|row| row.key == "A" && row.label != "A000").collect();
        assert_eq!(followers, parked, "a retry of the head touched its followers");
    }
    h.make_due(&[]).await;
    let expected: Vec<_> = (0..120).map(|n| format!("A{n:03}")).collect();
    assert_eq!(relay.drain().await, expected);
    assert_eq!(h.blocks().await, []);
}

/// While followers are let out, new rows of the key queue up behind them, also when the last of them are in flight.
pub async fn new_rows_queue_up_behind_released_followers(h: &dyn Harness) {
    let mut rows = vec![row("A", "A00")];
    rows.extend((1..20).map(|n| row("A", &format!("A{n:02}"))));
    insert(h, &rows).await;
    let mut relay = Relay::new(h, 4).await;
    let mut other = Relay::new(h, 4).await;
    let claim = relay.rows().await;
    let mut verdicts = vec![release(); claim.events.len()];
    verdicts[0] = retry();
    relay.settle(&claim, &verdicts).await;
    relay.expect_empty().await;
    h.make_due(&[]).await;
    let claim = relay.expect(&["A00"]).await;
    relay.publish(&claim).await;
    let mut delivered = Vec::new();
    for n in 20..60 {
        insert(h, &[row("A", &format!("A{n:02}"))]).await;
        let Claimed::Rows(claim) = relay.claim().await else { continue };
        other.expect_held_or_empty().await;
        delivered.extend(labels(&claim.events).into_iter().map(str::to_owned));
        relay.publish(&claim).await;
    }
    delivered.extend(other.drain().await);
    let expected: Vec<_> = (1..60).map(|n| format!("A{n:02}")).collect();
    assert_eq!(delivered, expected);
    assert_eq!(h.blocks().await, []);
}

/// A follower that is retried in its turn becomes the head, and so on through the key.
pub async fn follower_becomes_the_next_head(h: &dyn Harness) {
    let seqs = insert(h, &[row("A", "A1"), row("A", "A2"), row("A", "A3")]).await;
    let mut relay = Relay::new(h, 10).await;
    let claim = relay.expect(&["A1", "A2", "A3"]).await;
    relay.settle(&claim, &[retry(), release(), release()]).await;
    relay.expect_empty().await;
    h.make_due(&[]).await;
    let claim = relay.expect(&["A1"]).await;
    relay.publish(&claim).await;
    let mut followers = relay.rows().await;
    assert_eq!(labels(&followers.events)[0], "A2");
    let mut verdicts = vec![release(); followers.events.len()];
    verdicts[0] = retry();
    relay.settle(&followers, &verdicts).await;
    relay.expect_empty().await;
    let rows = h.rows().await;
    assert_eq!(find(&rows, "A2").retry_count, 1);
    assert_eq!(h.blocks().await, [block("A", seqs[1], false)]);
    h.make_due(&[]).await;
    followers = relay.expect(&["A2"]).await;
    assert!(followers.events[0].is_hold);
    relay.publish(&followers).await;
    assert_eq!(relay.drain().await, ["A3"]);
    assert_eq!(h.blocks().await, []);
}

/// More blocked keys than a claim looks up at once.
pub async fn many_blocked_keys_hold_their_rows(h: &dyn Harness) {
    let keys: Vec<String> = (0..150).map(|n| format!("blocked{n}")).collect();
    for key in &keys {
        h.put_block(key, 0, false).await;
    }
    let rows: Vec<_> = keys.iter().map(|key| row(key, key)).chain([row("A", "A1"), row("B", "B1")]).collect();
    insert(h, &rows).await;
    let mut relay = Relay::new(h, 200).await;
    let claim = relay.expect(&["A1", "B1"]).await;
    relay.publish(&claim).await;
    // Blocks without a head are never let out: what is parked stays.
    assert!(h.rows().await.iter().all(|row| row.label.len() == 2 || row.status == "PENDING"));
    assert_eq!(h.blocks().await.len(), keys.len());
}

/// The walk over a released key's followers stops at a row that is itself being retried and makes it the hold.
pub async fn walk_stops_at_the_next_head(h: &dyn Harness) {
    let seqs = insert(h, &[row("A", "A1"), row("A", "A2"), row("A", "A3"), row("A", "A4")]).await;
    let mut relay = Relay::new(h, 1).await;
    let claim = relay.expect(&["A1"]).await;
    relay.publish(&claim).await;
    h.park(seqs[1], When::Parked, None).await;
    h.park(seqs[2], When::In(HOUR), Some("nack")).await;
    h.park(seqs[3], When::Parked, None).await;
    h.put_block("A", seqs[0], true).await;
    let mut relay = Relay::new(h, 10).await;
    let claim = relay.expect(&["A2"]).await;
    relay.publish(&claim).await;
    let next_due = relay.expect_empty().await;
    assert!(next_due.is_some_and(|due| due <= HOUR));
    assert_eq!(h.blocks().await, [block("A", seqs[2], false)]);
    h.make_due(&[]).await;
    assert_eq!(relay.drain().await, ["A3", "A4"]);
    assert_eq!(h.blocks().await, []);
}

/// Released keys that have nothing left to give do not hide the next one, however small the batch.
pub async fn exhausted_keys_hide_no_followers(h: &dyn Harness) {
    let mut rows: Vec<_> = ["A", "B", "C"].map(|key| row(key, "head")).into();
    rows.push(row("D", "D1"));
    rows.push(row("D", "D2"));
    let seqs = insert(h, &rows).await;
    let mut relay = Relay::new(h, 1).await;
    for key in ["head", "head", "head", "D1"] {
        let claim = relay.expect(&[key]).await;
        relay.publish(&claim).await;
    }
    h.park(seqs[4], When::Parked, None).await;
    for (key, &seq) in ["A", "B", "C", "D"].iter().zip(&seqs) {
        h.put_block(key, seq, true).await;
    }
    assert_eq!(relay.drain().await, ["D2"]);
    assert_eq!(h.blocks().await, []);
}

/// The next head is in flight, in a claim that was told of no block: the key is busy, and the head does not become a
/// hold that nobody would release.
pub async fn next_head_in_flight_keeps_the_key_busy(h: &dyn Harness) {
    let seqs = insert(h, &[row("A", "A1"), row("A", "A2"), row("A", "A3")]).await;
    let mut first = Relay::new(h, 1).await;
    let claim = first.expect(&["A1"]).await;
    first.publish(&claim).await;
    let head = first.expect(&["A2"]).await;
    h.park(seqs[1], When::Ago(Duration::from_secs(1)), Some("nack")).await;
    h.park(seqs[2], When::Parked, None).await;
    h.put_block("A", seqs[0], true).await;
    let mut second = Relay::new(h, 10).await;
    second.expect_held().await;
    assert_eq!(h.blocks().await, [block("A", seqs[0], true)]);
    first.publish(&head).await;
    assert_eq!(second.drain().await, ["A3"]);
    assert_eq!(h.blocks().await, []);
}

/// A delayed row holds nothing back, neither its key's ready rows nor a walk over followers.
pub async fn delayed_row_holds_nothing_back(h: &dyn Harness) {
    let seqs =
        insert(h, &[row("A", "A1"), row("A", "A2"), row("A", "A3").when(When::In(HOUR)), row("A", "A4")])
            .await;
    let mut relay = Relay::new(h, 10).await;
    let claim = relay.expect(&["A1", "A2", "A4"]).await;
    relay.settle(&claim, &[retry(), release(), release()]).await;
    relay.expect_empty().await;
    h.make_due(&seqs[..1]).await;
    assert_eq!(relay.drain().await, ["A1", "A2", "A4"]);
    let rows = h.rows().await;
    assert_eq!(find(&rows, "A3").last_error, None);
    assert!(matches!(find(&rows, "A3").available, Available::Later(_)));
    h.make_due(&[]).await;
    assert_eq!(relay.drain().await, ["A3"]);
    assert_eq!(h.blocks().await, []);
}

/// A delayed row takes its place by seq when it falls due, and its next rows wait for it like for any other.
pub async fn delayed_row_takes_its_place_when_due(h: &dyn Harness) {
    insert(h, &[row("A", "A1").when(When::In(HOUR)), row("B", "B1")]).await;
    let mut relay = Relay::new(h, 10).await;
    let mut other = Relay::new(h, 10).await;
    assert_eq!(relay.drain().await, ["B1"]);
    let next_due = relay.expect_empty().await.expect("the delayed row has a time");
    assert!(next_due > HOUR / 2 && next_due <= HOUR, "due in {next_due:?}");
    insert(h, &[row("A", "A2"), row("A", "A3")]).await;
    h.make_due(&[]).await;
    let claim = relay.expect(&["A1", "A2", "A3"]).await;
    other.expect_held().await;
    relay.publish(&claim).await;
}

/// A delayed row that falls due while its key is held waits with the others.
pub async fn due_row_of_a_held_key_waits(h: &dyn Harness) {
    let seqs = insert(h, &[row("A", "A1"), row("A", "A2").when(When::In(HOUR)), row("A", "A3")]).await;
    let mut relay = Relay::new(h, 1).await;
    let claim = relay.expect(&["A1"]).await;
    relay.settle_all(&claim, retry()).await;
    h.make_due(&seqs[1..2]).await;
    relay.expect_empty().await;
    assert_eq!(find(&h.rows().await, "A2").available, Available::Parked);
    h.make_due(&seqs[..1]).await;
    assert_eq!(relay.drain().await, ["A1", "A2", "A3"]);
}

/// Hold is a retry that costs the event nothing.
pub async fn hold_charges_nothing(h: &dyn Harness) {
    let seqs = insert(h, &[row("A", "A1"), row("A", "A2"), row("B", "B1")]).await;
    let mut relay = Relay::new(h, 10).await;
    let claim = relay.expect(&["A1", "A2", "B1"]).await;
    let hold = Verdict::Hold { after: HOUR, error: "no such topic".to_owned() };
    relay.settle(&claim, &[hold, release(), published()]).await;
    relay.expect_empty().await;
    let rows = h.rows().await;
    let head = find(&rows, "A1");
    assert_eq!((head.status.as_str(), head.retry_count, head.lost_count), ("PENDING", 0, 0));
    assert_eq!(head.last_error.as_deref(), Some("no such topic"));
    assert!(matches!(head.available, Available::Later(3000..=3600)), "{:?}", head.available);
    assert_eq!(find(&rows, "A2").available, Available::Parked);
    assert_eq!(h.blocks().await, [block("A", seqs[0], false)]);
    h.make_due(&[]).await;
    assert_eq!(relay.drain().await, ["A1", "A2"]);
}

/// A head that is given up under `skip` lets its followers out.
pub async fn skipped_head_lets_followers_out(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("A", "A2"), row("A", "A3")]).await;
    let mut relay = Relay::new(h, 1).await;
    let claim = relay.expect(&["A1"]).await;
    relay.settle_all(&claim, retry()).await;
    relay.expect_empty().await;
    h.make_due(&[]).await;
    let claim = relay.expect(&["A1"]).await;
    relay.settle_all(&claim, Verdict::Failed { error: "too large".to_owned() }).await;
    assert_eq!(relay.drain().await, ["A2", "A3"]);
    assert_eq!(find(&h.rows().await, "A1").status, "FAILED");
    assert_eq!(h.blocks().await, []);
}
