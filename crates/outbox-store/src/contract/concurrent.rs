//! Several relays at once on one queue.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Harness, NewRow, Relay, insert, published, release, row};
use crate::{Claimed, Event, Ordering, StoreError, Verdict};

const LIMIT: Duration = Duration::from_secs(60);

/// What all relays of a case have delivered, and hold right now.
#[derive(Default)]
struct Sink {
    in_hand: HashSet<i64>,
    keys_in_hand: BTreeMap<String, i64>,
    first: Vec<(String, i64)>,
    delivered: HashSet<i64>,
}

impl Sink {
    fn take(&mut self, events: &[Event], token: i64, ordered: bool) {
        for event in events {
            assert!(self.in_hand.insert(event.seq), "row {} is in two claims", event.seq);
            let other = self.keys_in_hand.insert(event.aggregate_id.clone(), token);
            assert!(
                !ordered || other.is_none_or(|other| other == token),
                "key {} is in two claims",
                event.aggregate_id
            );
        }
    }

    /// Delivers what is not to be retried and gives the verdicts: a failure releases the rest of its key.
    fn deliver(&mut self, events: &[Event], fails: impl Fn(&Event) -> bool, ordered: bool) -> Vec<Verdict> {
        let mut failed = HashSet::new();
        let mut verdicts = Vec::new();
        for event in events {
            if ordered && failed.contains(&event.aggregate_id) {
                verdicts.push(release());
            } else if fails(event) {
                failed.insert(event.aggregate_id.clone());
                verdicts.push(Verdict::Retry { after: Duration::from_millis(1), error: "nack".to_owned() });
            } else {
                if self.delivered.insert(event.seq) {
                    self.first.push((event.aggregate_id.clone(), event.seq));
                }
                verdicts.push(published());
            }
        }
        verdicts
    }

    /// Before the settle: afterwards another relay may have the rows already.
    fn give_back(&mut self, events: &[Event]) {
        for event in events {
            self.in_hand.remove(&event.seq);
            self.keys_in_hand.remove(&event.aggregate_id);
        }
    }
}

async fn run(mut relay: Relay, sink: Arc<Mutex<Sink>>, total: usize, fails: fn(&Event) -> bool) {
    let ordered = relay.policy.ordering == Ordering::Key;
    let end = Instant::now() + LIMIT;
    while sink.lock().expect("sink").delivered.len() < total {
        assert!(Instant::now() < end, "{} of {total} delivered", sink.lock().expect("sink").delivered.len());
        let claim = match relay.try_claim().await {
            Ok(Claimed::Rows(claim)) => claim,
            Ok(_) | Err(StoreError::Conflict(_)) => {
                tokio::time::sleep(Duration::from_millis(2)).await;
                continue;
            }
            Err(error) => panic!("claim: {error}"),
        };
        let verdicts = {
            let mut sink = sink.lock().expect("sink");
            sink.take(&claim.events, claim.token, ordered);
            let verdicts = sink.deliver(&claim.events, fails, ordered);
            sink.give_back(&claim.events);
            verdicts
        };
        relay.settle(&claim, &verdicts).await;
    }
}

async fn race(
    h: &dyn Harness,
    relays: Vec<Relay>,
    rows: &[Vec<NewRow>],
    fails: fn(&Event) -> bool,
) -> Vec<(String, i64)> {
    let sink = Arc::new(Mutex::new(Sink::default()));
    let total = rows.iter().map(Vec::len).sum();
    let running: Vec<_> =
        relays.into_iter().map(|relay| tokio::spawn(run(relay, Arc::clone(&sink), total, fails))).collect();
    for rows in rows {
        insert(h, rows).await;
    }
    for relay in running {
        relay.await.expect("relay");
    }
    let sink = sink.lock().expect("sink");
    assert_eq!(sink.first.len(), total);
    sink.first.clone()
}

fn batches(count: usize, size: usize, keys: usize) -> Vec<Vec<NewRow>> {
    let one = |n: usize| row(&format!("K{}", n % keys), "x");
    (0..count).map(|batch| (0..size).map(|n| one(batch * size + n)).collect()).collect()
}

fn assert_ordered(first: &[(String, i64)]) {
    let mut last = BTreeMap::new();
    for (key, seq) in first {
        let before = last.insert(key, *seq).unwrap_or(0);
        assert!(before < *seq, "key {key}: {seq} was delivered after {before}");
    }
}

/// Four relays, failures now and then: every row is in one claim at a time and each key's first deliveries are in order.
pub async fn ordered_relays_race(h: &dyn Harness) {
    let mut relays = Vec::new();
    for _ in 0..4 {
        relays.push(Relay::new(h, 8).await);
    }
    let fails = |event: &Event| event.seq % 9 == 0 && event.retry_count < 2;
    let first = race(h, relays, &batches(40, 10, 13), fails).await;
    assert_ordered(&first);
    assert!(h.rows().await.iter().all(|row| row.status == "PUBLISHED" && row.lost_count == 0));
    let mut relay = Relay::new(h, 8).await;
    assert_eq!(relay.expect_empty().await, None);
    assert_eq!(h.blocks().await, []);
    assert_eq!(h.claims().await, [0; 0]);
}

/// The same on few keys, where claims are small and blocks are frequent.
pub async fn ordered_relays_race_on_hot_keys(h: &dyn Harness) {
    let mut relays = Vec::new();
    for batch in [1, 3, 50] {
        relays.push(Relay::new(h, batch).await);
    }
    let fails = |event: &Event| event.seq % 5 == 0 && event.retry_count < 1;
    let first = race(h, relays, &batches(20, 6, 2), fails).await;
    assert_ordered(&first);
    let mut relay = Relay::new(h, 8).await;
    assert_eq!(relay.expect_empty().await, None);
    assert_eq!(h.blocks().await, []);
}

/// Unordered relays share the rows without waiting for one another and without taking one twice.
pub async fn unordered_relays_race(h: &dyn Harness) {
    let mut relays = Vec::new();
    for _ in 0..4 {
        relays.push(Relay::with(h, |policy| (policy.ordering, policy.batch) = (Ordering::None, 8)).await);
    }
    race(h, relays, &batches(40, 10, 13), |event| event.seq % 9 == 0 && event.retry_count < 2).await;
    assert!(h.rows().await.iter().all(|row| row.status == "PUBLISHED" && row.lost_count == 0));
    assert_eq!(h.claims().await, [0; 0]);
}

/// Two processes that migrate at once both succeed, and each migration runs once.
pub async fn migrations_race(h: &dyn Harness) {
    let first = h.unmigrated().await;
    let second = Arc::clone(&first);
    let (first, second) = (
        tokio::spawn(async move { first.migrate().await }),
        tokio::spawn(async move { second.migrate().await }),
    );
    let mut applied = first.await.expect("join").expect("migrate");
    applied.extend(second.await.expect("join").expect("migrate"));
    let count = applied.len();
    applied.sort_unstable();
    applied.dedup();
    assert!(count > 0 && applied.len() == count, "a migration ran twice");
}
