//! Claims that run out, their rows, and owners that come back too late.

use std::time::Duration;

use super::{Available, Harness, NewRow, Relay, insert, labels, published, release, retry, row};
use crate::{Claimed, MAX_RETRIES_EXCEEDED, OnFailed, Settled, Verdict};

/// A stale owner settles nothing, whatever its verdicts, before and after somebody else has taken the rows.
pub async fn stale_settle_changes_nothing(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("A", "A2"), row("B", "B1")]).await;
    // Once lost, each weighs eight.
    let (mut first, mut second) = (Relay::new(h, 64).await, Relay::new(h, 64).await);
    let stale = first.expect(&["A1", "A2", "B1"]).await;
    h.expire_claims().await;
    assert_eq!(second.sweep().await.len(), 1);
    let verdicts = [
        vec![published(), retry(), release()],
        vec![
            Verdict::Failed { error: "no".into() },
            Verdict::Hold { after: Duration::ZERO, error: "no".into() },
            published(),
        ],
        vec![release(), release(), release()],
    ];
    let before = (h.rows().await, h.blocks().await, h.claims().await);
    for verdicts in &verdicts {
        assert_eq!(first.try_settle(&stale, verdicts).await, Settled::LeaseLost);
    }
    assert_eq!((h.rows().await, h.blocks().await, h.claims().await), before);
    let claim = second.expect(&["A1", "A2", "B1"]).await;
    let before = (h.rows().await, h.blocks().await, h.claims().await);
    for verdicts in &verdicts {
        assert_eq!(first.try_settle(&stale, verdicts).await, Settled::LeaseLost);
    }
    assert_eq!((h.rows().await, h.blocks().await, h.claims().await), before);
    second.publish(&claim).await;
    let before = h.rows().await;
    assert_eq!(first.try_settle(&stale, &verdicts[0]).await, Settled::LeaseLost);
    assert_eq!(h.rows().await, before);
}

/// A claim can be settled once.
pub async fn second_settle_is_stale(h: &dyn Harness) {
    insert(h, &[row("A", "A1")]).await;
    let mut relay = Relay::new(h, 10).await;
    let claim = relay.expect(&["A1"]).await;
    relay.settle_all(&claim, release()).await;
    assert_eq!(relay.try_settle(&claim, &[published()]).await, Settled::LeaseLost);
    assert_eq!(h.rows().await[0].status, "PENDING");
    assert_eq!(relay.drain().await, ["A1"]);
}

/// Until somebody takes the claim apart, its owner may still settle it.
pub async fn expired_claim_settles_until_it_is_swept(h: &dyn Harness) {
    insert(h, &[row("A", "A1")]).await;
    let mut relay = Relay::new(h, 10).await;
    let claim = relay.expect(&["A1"]).await;
    h.expire_claims().await;
    relay.publish(&claim).await;
    assert!(relay.sweep().await.is_empty());
    assert_eq!(h.rows().await[0].status, "PUBLISHED");
}

/// The sweep leaves live claims alone, takes one expired claim at a time, and says what it did.
pub async fn sweep_takes_expired_claims_one_by_one(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("B", "B1"), row("C", "C1")]).await;
    let mut relay = Relay::new(h, 2).await;
    let first = relay.expect(&["A1", "B1"]).await;
    let second = relay.expect(&["C1"]).await;
    assert!(relay.sweep().await.is_empty());
    let in_flight = h.in_flight().await;
    assert_eq!(in_flight.len(), 3);
    for (_, relay_name, left) in &in_flight {
        assert!(!relay_name.is_empty());
        assert!(*left > relay.policy.lease / 2 && *left <= relay.policy.lease, "lease left: {left:?}");
    }
    h.expire_claims().await;
    let mut swept = vec![relay.store.sweep(&relay.policy).await.expect("sweep").expect("an expired claim")];
    assert_eq!(h.claims().await.len(), 1);
    swept.extend(relay.sweep().await);
    swept.sort_by_key(|swept| std::cmp::Reverse(swept.recovered));
    assert_eq!((swept.len(), swept[0].recovered, swept[1].recovered), (2, 2, 1));
    assert_eq!((swept[0].token, swept[1].token), (first.token, second.token));
    let mut types = swept[0].event_types.clone();
    types.sort();
    assert_eq!(types, ["A1", "B1"]);
    assert!(
        swept
            .iter()
            .all(|swept| swept.most_lost == 1 && swept.failed.is_none() && swept.relay == in_flight[0].1)
    );
    let rows = h.rows().await;
    assert!(rows.iter().all(|row| row.status == "PENDING" && row.lost_count == 1 && row.retry_count == 0));
    assert!(rows.iter().all(|row| row.claim_token.is_none() && row.available == Available::Ready));
    assert_eq!(h.in_flight().await, []);
    assert_eq!(relay.drain().await.len(), 3);
}

/// A relay dies between claim and settle: its rows are delivered again, in order, by another and by itself reborn.
pub async fn crash_between_claim_and_settle(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("A", "A2"), row("B", "B1")]).await;
    let (mut first, mut second) = (Relay::new(h, 10).await, Relay::new(h, 10).await);
    first.expect(&["A1", "A2", "B1"]).await;
    first.crash();
    insert(h, &[row("A", "A3")]).await;
    first.expect_held().await;
    second.expect_held().await;
    h.expire_claims().await;
    second.expect_held().await;
    assert_eq!(second.sweep().await.len(), 1);
    assert_eq!(second.drain().await, ["A1", "A2", "B1", "A3"]);
}

/// A lost claim may hold ready rows, due rows and followers: all of them are found again, each where it was.
pub async fn sweep_finds_every_kind_of_row(h: &dyn Harness) {
    let seqs = insert(h, &[row("A", "A1"), row("A", "A2"), row("A", "A3"), row("B", "B1")]).await;
    let mut relay = Relay::new(h, 64).await;
    let claim = relay.expect(&["A1", "A2", "A3", "B1"]).await;
    relay.settle(&claim, &[retry(), release(), release(), retry()]).await;
    relay.expect_empty().await;
    h.make_due(&seqs[..1]).await;
    let claim = relay.expect(&["A1"]).await;
    relay.publish(&claim).await;
    h.make_due(&seqs[3..]).await;
    insert(h, &[row("C", "C1")]).await;
    let claim = relay.rows().await;
    let taken = labels(&claim.events).into_iter().map(str::to_owned).collect::<Vec<_>>();
    for kind in ["A2", "B1", "C1"] {
        assert!(taken.contains(&kind.to_owned()), "{kind} is not in {taken:?}");
    }
    h.expire_claims().await;
    let swept = relay.sweep().await;
    assert_eq!((swept.len(), swept[0].recovered), (1, taken.len() as u64));
    let rows = h.rows().await;
    for row in rows.iter().filter(|row| taken.contains(&row.label)) {
        assert_eq!(
            (row.status.as_str(), row.lost_count, row.claim_token),
            ("PENDING", 1, None),
            "{}",
            row.label
        );
        let place = if row.key == "A" {
            Available::Parked
        } else if row.key == "B" {
            Available::Due
        } else {
            Available::Ready
        };
        assert_eq!(row.available, place, "{}", row.label);
    }
    let mut delivered = relay.drain().await;
    delivered.sort();
    assert_eq!(delivered, ["A2", "A3", "B1", "C1"]);
    assert_eq!(h.blocks().await, []);
}

/// Rows of lost claims are taken a full batch, then an eighth, a sixty-fourth, and at last one at a time.
pub async fn rows_of_lost_claims_are_taken_fewer_and_fewer(h: &dyn Harness) {
    let rows: Vec<NewRow> = (0..500).map(|n| row(&format!("K{n}"), "x")).collect();
    insert(h, &rows).await;
    let mut relay = Relay::new(h, 500).await;
    for expected in [500, 62, 7, 1, 1, 1] {
        let claim = relay.rows().await;
        assert_eq!(claim.events.len(), expected);
        h.expire_claims().await;
        assert_eq!(relay.sweep().await.len(), 1);
        relay.crash();
    }
}

/// A row that kills its relays is given up once it was alone in as many lost claims; its neighbours are delivered.
pub async fn row_that_kills_relays_ends_failed(h: &dyn Harness) {
    let mut rows: Vec<NewRow> = (0..40).map(|n| row(&format!("K{}", n % 20), "innocent")).collect();
    rows[17].event_type = Some("killer".to_owned());
    insert(h, &rows).await;
    let mut relay = Relay::with(h, |policy| (policy.batch, policy.max_retries) = (64, 3)).await;
    let mut delivered = 0;
    let mut failed = Vec::new();
    let mut crashes = 0;
    while let Claimed::Rows(claim) = relay.claim().await {
        if labels(&claim.events).contains(&"killer") {
            crashes += 1;
            relay.crash();
            h.expire_claims().await;
            failed.extend(relay.sweep().await.into_iter().filter_map(|swept| swept.failed));
        } else {
            delivered += claim.events.len();
            relay.publish(&claim).await;
        }
    }
    assert_eq!((delivered, failed.len()), (39, 1));
    assert!((4..=8).contains(&crashes), "{crashes} crashes");
    assert_eq!(failed[0].event_type.as_deref(), Some("killer"));
    assert!(failed[0].lost_count > 3);
    let rows = h.rows().await;
    let killer: Vec<_> = rows.iter().filter(|row| row.status != "PUBLISHED").collect();
    assert_eq!((killer.len(), killer[0].status.as_str(), killer[0].id), (1, "FAILED", failed[0].id));
    assert_eq!(killer[0].last_error.as_deref(), Some(MAX_RETRIES_EXCEEDED));
    assert_eq!(killer[0].lost_count, i64::from(failed[0].lost_count));
    assert!(killer[0].failed && killer[0].settled && killer[0].claim_token.is_none());
}

/// Whoever shared a claim may be innocent: however often it was lost, it is not given up.
pub async fn row_in_company_is_not_given_up(h: &dyn Harness) {
    let seqs = insert(h, &[row("A", "A1"), row("B", "B1")]).await;
    let mut relay = Relay::new(h, 10).await;
    relay.expect(&["A1", "B1"]).await;
    for &seq in &seqs {
        h.set_counts(seq, 0, 5).await;
    }
    h.expire_claims().await;
    let swept = relay.sweep().await;
    assert_eq!((swept[0].recovered, swept[0].failed.clone(), swept[0].most_lost), (2, None, 6));
    assert!(h.rows().await.iter().all(|row| row.status == "PENDING" && row.lost_count == 6));
}

/// The row's own bound counts, not only the queue's; at the bound itself it is given one more chance.
pub async fn own_max_retries_bounds_lost_claims(h: &dyn Harness) {
    insert(h, &[row("A", "A1").max_retries(1)]).await;
    let mut relay = Relay::new(h, 10).await;
    relay.expect(&["A1"]).await;
    h.expire_claims().await;
    assert_eq!(relay.sweep().await[0].failed, None);
    let claim = relay.expect(&["A1"]).await;
    assert_eq!((claim.events[0].lost_count, claim.events[0].max_retries), (1, Some(1)));
    h.expire_claims().await;
    let failed = relay.sweep().await[0].failed.clone().expect("given up");
    assert_eq!((failed.lost_count, failed.event_type.as_deref()), (2, Some("A1")));
}

/// Giving a row up in a sweep is a settle as Failed: under `block` its key waits, under `skip` followers go.
pub async fn sweep_that_fails_a_head_follows_on_failed(h: &dyn Harness) {
    for (key, on_failed) in [("S", OnFailed::Skip), ("B", OnFailed::Block)] {
        let queue = format!("queue-{key}");
        let rows = [row(key, "1").queue(&queue), row(key, "2").queue(&queue), row(key, "3").queue(&queue)];
        let seqs = insert(h, &rows).await;
        let set = |policy: &mut crate::QueuePolicy| {
            (policy.name, policy.batch, policy.max_retries, policy.on_failed) =
                (queue.clone(), 1, 0, on_failed);
        };
        let mut relay = Relay::with(h, set).await;
        let claim = relay.expect(&["1"]).await;
        relay.settle_all(&claim, retry()).await;
        relay.expect_empty().await;
        h.make_due(&seqs[..1]).await;
        relay.expect(&["1"]).await;
        h.expire_claims().await;
        assert!(relay.sweep().await[0].failed.is_some());
        if on_failed == OnFailed::Skip {
            assert_eq!(relay.drain().await, ["2", "3"]);
            assert_eq!(h.blocks().await, []);
        } else {
            relay.expect_nothing().await;
            let blocks = h.blocks().await;
            assert_eq!((blocks.len(), blocks[0].hold_after, blocks[0].released), (1, seqs[0], false));
        }
    }
}

/// Two sweepers at once: each claim is taken apart once and its rows are charged once.
pub async fn concurrent_sweeps(h: &dyn Harness) {
    let rows: Vec<_> = (0..30).map(|n| row(&format!("K{n}"), "x")).collect();
    insert(h, &rows).await;
    let mut relay = Relay::new(h, 3).await;
    for _ in 0..10 {
        relay.rows().await;
    }
    h.expire_claims().await;
    let (first, second) = (Relay::new(h, 3).await, Relay::new(h, 3).await);
    let sweep = |relay: Relay| {
        tokio::spawn(async move {
            let mut tokens = Vec::new();
            loop {
                match relay.store.sweep(&relay.policy).await {
                    Ok(Some(swept)) => tokens.push(swept.token),
                    Ok(None) => return tokens,
                    Err(crate::StoreError::Conflict(_)) => {}
                    Err(error) => panic!("sweep: {error}"),
                }
            }
        })
    };
    let (first, second) = (sweep(first), sweep(second));
    let mut tokens = first.await.expect("sweep");
    tokens.extend(second.await.expect("sweep"));
    tokens.extend(relay.sweep().await.into_iter().map(|swept| swept.token));
    let count = tokens.len();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!((tokens.len(), count), (10, 10));
    assert!(h.rows().await.iter().all(|row| row.status == "PENDING" && row.lost_count == 1));
}

/// A PROCESSING row whose claim does not exist goes back once it has not been touched for a lease, and no sooner.
pub async fn processing_row_without_a_claim(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("B", "B1")]).await;
    let mut relay = Relay::new(h, 1).await;
    let mut other = Relay::with(h, |policy| policy.name = "other".to_owned()).await;
    relay.expect(&["A1"]).await;
    h.forget_claims().await;
    let live = relay.expect(&["B1"]).await;
    assert_eq!(relay.store.recover_orphans(&relay.policy).await.expect("recover"), 0);
    h.age(relay.policy.lease * 2).await;
    assert_eq!(other.store.recover_orphans(&other.policy).await.expect("recover"), 0);
    assert_eq!(relay.store.recover_orphans(&relay.policy).await.expect("recover"), 1);
    let rows = h.rows().await;
    assert_eq!((rows[0].status.as_str(), rows[0].claim_token), ("PENDING", None));
    assert_eq!(rows[1].status, "PROCESSING");
    assert_eq!(relay.drain().await, ["A1"]);
    relay.publish(&live).await;
    other.expect_empty().await;
}

/// Orphans of every kind are found, also a retried head, and its key is whole afterwards.
pub async fn orphaned_head_of_a_held_key(h: &dyn Harness) {
    insert(h, &[row("A", "A1"), row("A", "A2")]).await;
    let mut relay = Relay::new(h, 1).await;
    let claim = relay.expect(&["A1"]).await;
    relay.settle_all(&claim, retry()).await;
    relay.expect_empty().await;
    h.make_due(&[]).await;
    relay.expect(&["A1"]).await;
    h.forget_claims().await;
    h.age(relay.policy.lease * 2).await;
    assert_eq!(relay.store.recover_orphans(&relay.policy).await.expect("recover"), 1);
    assert_eq!(relay.drain().await, ["A1", "A2"]);
    assert_eq!(h.blocks().await, []);
}
