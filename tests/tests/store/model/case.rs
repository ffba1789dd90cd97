use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_store::contract::{Harness, NewRow, Relay, When, Writer, labels, row};
use outbox_store::{Claim, Claimed, OnFailed, Published, QueuePolicy, Selection, Settled, Store, Verdict};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::reference::{Place, Reference};

const HOUR: Duration = Duration::from_secs(3600);
const KEYS: [&str; 3] = ["A", "B", "C"];

/// A claim in a relay's hand, dead or alive.
struct Hand {
    relay: usize,
    claim: Claim,
}

/// An application's transaction that is not done yet.
struct Open {
    writer: Box<dyn Writer>,
    key: &'static str,
    rows: Vec<(i64, String, bool)>,
}

struct Case<'a> {
    h: Arc<dyn Harness>,
    rng: StdRng,
    policy: Arc<QueuePolicy>,
    relays: Vec<Relay>,
    model: Reference,
    hands: Vec<Hand>,
    open: Vec<Open>,
    paused: bool,
    log: &'a Mutex<Vec<String>>,
}

/// One case: random steps, then everything is brought to its end and compared.
pub(super) async fn run(h: Arc<dyn Harness>, stores: &[Arc<dyn Store>], seed: u64, log: &Mutex<Vec<String>>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut policy = QueuePolicy::named("default");
    policy.batch = [1, 2, 3, 8, 64][rng.random_range(0..5)];
    policy.on_failed = if rng.random_bool(0.5) { OnFailed::Skip } else { OnFailed::Block };
    policy.published = if rng.random_bool(0.5) { Published::Keep } else { Published::Delete };
    policy.max_retries = rng.random_range(0..3);
    let policy = Arc::new(policy);
    stores[0].register_queues(&["default"]).await.expect("register");
    let relays = stores.iter().map(|store| Relay::on(Arc::clone(store), Arc::clone(&policy))).collect();
    let model = Reference::new(&policy);
    let mut case =
        Case { h, rng, policy, relays, model, hands: Vec::new(), open: Vec::new(), paused: false, log };
    case.note(format!("{:?}", case.policy));
    for _ in 0..case.rng.random_range(10..50) {
        case.step().await;
    }
    case.finish().await;
}

impl Case<'_> {
    fn note(&self, what: String) {
        self.log.lock().expect("log").push(what);
    }

    async fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..25 => self.insert().await,
            25..32 => self.begin().await,
            32..40 => self.end_transaction().await,
            40..60 => self.claim_any().await,
            60..80 => self.settle_any().await,
            80..83 => self.crash(),
            83..87 => self.expire().await,
            87..94 => self.make_due().await,
            94..96 => self.pause(!self.paused).await,
            96..98 => self.operate().await,
            _ => self.compare().await,
        }
    }

    /// A key without an open transaction: writers of a key are serialised.
    fn free_key(&mut self) -> Option<&'static str> {
        let key = KEYS[self.rng.random_range(0..KEYS.len())];
        self.open.iter().all(|open| open.key != key).then_some(key)
    }

    fn new_row(&mut self, key: &str) -> (NewRow, bool) {
        let delayed = self.rng.random_bool(0.1);
        let when = if delayed { When::In(HOUR) } else { When::Now };
        (row(key, "x").when(when), delayed)
    }

    async fn insert_into(&mut self, writer: &mut dyn Writer, key: &str) -> Vec<(i64, String, bool)> {
        let mut rows = Vec::new();
        for _ in 0..self.rng.random_range(1..4) {
            let (row, delayed) = self.new_row(key);
            rows.push((writer.insert(&row).await, key.to_owned(), delayed));
        }
        rows
    }

    async fn insert(&mut self) {
        let Some(key) = self.free_key() else { return };
        let mut writer = self.h.begin().await;
        let rows = self.insert_into(&mut *writer, key).await;
        if self.rng.random_bool(0.1) {
            self.note(format!("{key} rolls back {rows:?}"));
            writer.rollback().await;
        } else {
            self.note(format!("{key} commits {rows:?}"));
            writer.commit().await;
            self.model.commit(rows);
        }
    }

    async fn begin(&mut self) {
        if !self.h.concurrent_writers() || self.open.len() >= 2 {
            return;
        }
        let Some(key) = self.free_key() else { return };
        let mut writer = self.h.begin().await;
        let rows = self.insert_into(&mut *writer, key).await;
        self.note(format!("{key} has inserted {rows:?}"));
        self.open.push(Open { writer, key, rows });
    }

    async fn end_transaction(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let open = self.open.swap_remove(self.rng.random_range(0..self.open.len()));
        if self.rng.random_bool(0.2) {
            self.note(format!("{} rolls back late {:?}", open.key, open.rows));
            open.writer.rollback().await;
        } else {
            self.note(format!("{} commits late {:?}", open.key, open.rows));
            open.writer.commit().await;
            self.model.commit(open.rows);
        }
    }

    async fn claim_any(&mut self) {
        let relay = self.rng.random_range(0..self.relays.len());
        self.claim(relay).await;
    }

    /// Claims, and checks the answer against the model; says whether there were rows.
    async fn claim(&mut self, relay: usize) -> bool {
        let claimed = self.relays[relay].claim().await;
        match claimed {
            Claimed::Rows(claim) => {
                let seqs: Vec<i64> = claim.events.iter().map(|event| event.seq).collect();
                self.note(format!("relay {relay} claims {seqs:?} as {}", claim.token));
                assert!(!self.paused, "rows of a paused queue");
                assert!(labels(&claim.events).len() <= self.policy.batch as usize);
                self.model.claimed(&claim);
                self.hands.push(Hand { relay, claim });
                return true;
            }
            Claimed::Paused => assert!(self.paused, "the queue is not paused"),
            other => {
                self.note(format!("relay {relay} claims: {other:?}"));
                assert!(!self.paused, "{other:?} of a paused queue");
                let free = self.model.free_keys();
                // Held is a promise to look again after a settle: it needs something in flight.
                let waits = matches!(other, Claimed::Held) && !self.model.live.is_empty();
                if !free.is_empty() && !waits {
                    let (rows, blocks) = (self.h.rows().await, self.h.blocks().await);
                    panic!("{other:?} although keys {free:?} have rows to claim: {rows:#?} {blocks:?}");
                }
            }
        }
        false
    }

    /// Random verdicts as the pipeline gives them: after a non-ack the rest of the key is not sent.
    fn verdicts(&mut self, claim: &Claim) -> Vec<Verdict> {
        let mut stopped: HashSet<String> = HashSet::new();
        let mut verdicts = Vec::new();
        for event in &claim.events {
            if stopped.contains(&event.aggregate_id) {
                verdicts.push(Verdict::Release);
                continue;
            }
            let verdict = match self.rng.random_range(0..10) {
                0..6 => Verdict::Published { receipt: Some("r".to_owned()) },
                6 | 7 => Verdict::Retry { after: HOUR, error: "nack".to_owned() },
                8 if self.rng.random_bool(0.5) => Verdict::Hold { after: HOUR, error: "no topic".to_owned() },
                8 => Verdict::Failed { error: "too large".to_owned() },
                _ => Verdict::Release,
            };
            let published = matches!(verdict, Verdict::Published { .. });
            // An answer may be lost after the delivery.
            if published
                || matches!(verdict, Verdict::Retry { .. } | Verdict::Release) && self.rng.random_bool(0.3)
            {
                self.model.deliver(event.seq);
            }
            if !published {
                stopped.insert(event.aggregate_id.clone());
            }
            verdicts.push(verdict);
        }
        verdicts
    }

    async fn settle_any(&mut self) {
        if self.hands.is_empty() {
            return;
        }
        let hand = self.hands.swap_remove(self.rng.random_range(0..self.hands.len()));
        let verdicts = self.verdicts(&hand.claim);
        self.settle(&hand, &verdicts).await;
    }

    async fn settle(&mut self, hand: &Hand, verdicts: &[Verdict]) {
        let token = hand.claim.token;
        self.note(format!("relay {} settles {token}: {verdicts:?}", hand.relay));
        let settled = self.relays[hand.relay].try_settle(&hand.claim, verdicts).await;
        if self.model.live.contains_key(&token) {
            assert_eq!(settled, Settled::Done, "claim {token}");
            self.model.settled(&hand.claim, verdicts);
        } else {
            assert_eq!(settled, Settled::LeaseLost, "claim {token}");
        }
    }

    /// A relay dies in the middle of what it does: some rows may have been delivered.
    fn crash(&mut self) {
        let relay = self.rng.random_range(0..self.relays.len());
        self.note(format!("relay {relay} crashes"));
        let (lost, kept) = self.hands.drain(..).partition::<Vec<_>, _>(|hand| hand.relay == relay);
        self.hands = kept;
        for hand in lost {
            self.verdicts(&hand.claim);
        }
        self.relays[relay].crash();
    }

    async fn expire(&mut self) {
        let relay = self.rng.random_range(0..self.relays.len());
        self.note(format!("leases run out, relay {relay} sweeps"));
        self.h.expire_claims().await;
        for swept in self.relays[relay].sweep().await {
            self.note(format!("swept {swept:?}"));
            self.model.swept(swept.token, swept.recovered, swept.failed.is_some());
        }
        assert!(self.model.live.is_empty(), "an expired claim was not swept");
    }

    async fn make_due(&mut self) {
        let waiting = self.model.rows.iter().filter(|(_, entry)| entry.place == Place::Waiting);
        let mut seqs: Vec<i64> = waiting.map(|(seq, _)| *seq).collect();
        let rng = &mut self.rng;
        seqs.retain(|_| rng.random_bool(0.6));
        if !seqs.is_empty() {
            self.make_these_due(&seqs).await;
        }
    }

    async fn make_these_due(&mut self, seqs: &[i64]) {
        self.note(format!("due: {seqs:?}"));
        self.h.make_due(seqs).await;
        self.model.made_due(seqs);
    }

    async fn pause(&mut self, paused: bool) {
        self.note(format!("paused: {paused}"));
        self.relays[0].store.set_paused("default", paused).await.expect("pause");
        self.paused = paused;
    }

    async fn operate(&mut self) {
        let retries = self.rng.random_bool(0.6);
        self.operator(retries).await;
    }

    async fn operator(&mut self, retries: bool) {
        self.note(format!("the operator {} all failed rows", if retries { "retries" } else { "discards" }));
        let store = &self.relays[0].store;
        let done = match retries {
            true => store.retry_failed(&Selection::All).await,
            false => store.discard_failed(&Selection::All).await,
        };
        assert_eq!(done.expect("operator"), self.model.failed() as u64);
        self.model.operator(retries);
    }

    async fn compare(&mut self) {
        self.model.assert_same(&self.h.rows().await, self.policy.published == Published::Delete);
    }

    /// Everything comes to its end: a relay as it is, memory and all, must find whatever is left.
    async fn finish(&mut self) {
        self.note("the end begins".to_owned());
        while !self.open.is_empty() {
            self.end_transaction().await;
        }
        self.pause(false).await;
        self.expire().await;
        self.compare().await;
        let last = self.rng.random_range(0..self.relays.len());
        for round in 0.. {
            assert!(round < 20, "rows are left: {:?}", self.model.rows);
            self.make_these_due(&[]).await;
            while self.claim(last).await {
                let hand = self.hands.pop().expect("the claim");
                hand.claim.events.iter().for_each(|event| self.model.deliver(event.seq));
                let verdicts = vec![Verdict::Published { receipt: None }; hand.claim.events.len()];
                self.settle(&hand, &verdicts).await;
            }
            if self.model.failed() > 0 {
                self.operator(round % 2 == 0).await;
            } else if self
                .model
                .rows
                .values()
                .all(|entry| matches!(entry.place, Place::Published | Place::Discarded))
            {
                break;
            }
        }
        self.settle_stale().await;
        self.compare().await;
        assert_eq!(self.h.claims().await, [0; 0]);
        assert_eq!(self.h.blocks().await, []);
        self.relays[0].crash();
        assert_eq!(self.relays[0].expect_empty().await, None);
    }

    /// Owners that come back at the very end change nothing.
    async fn settle_stale(&mut self) {
        while let Some(hand) = self.hands.pop() {
            let verdicts =
                vec![Verdict::Retry { after: HOUR, error: "late".to_owned() }; hand.claim.events.len()];
            self.settle(&hand, &verdicts).await;
        }
    }
}
