use std::collections::{BTreeMap, HashMap};

use outbox_store::contract::{Available, Row};
use outbox_store::{Claim, Event, OnFailed, QueuePolicy, Verdict};

/// Where the model thinks a committed row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Pending,
    /// Not before it is made due: delayed, or in backoff.
    Waiting,
    InFlight(i64),
    Published,
    Failed,
    Discarded,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) place: Place,
    /// It was retried or held before and not delivered since: its key waits behind it.
    pub(super) in_retry: bool,
    /// Delayed, or requeued after its followers went on: its place in the key's order is not promised.
    pub(super) out_of_order: bool,
    pub(super) delivered: bool,
    pub(super) retry_count: i64,
    pub(super) lost_count: i64,
}

/// What ought to be true of one queue, in the simplest words.
pub(super) struct Reference {
    on_failed: OnFailed,
    max_retries: i64,
    pub(super) rows: BTreeMap<i64, Entry>,
    /// Rows of each claim that nobody has settled or swept.
    pub(super) live: HashMap<i64, Vec<i64>>,
}

impl Reference {
    pub(super) fn new(policy: &QueuePolicy) -> Self {
        Self {
            on_failed: policy.on_failed,
            max_retries: i64::from(policy.max_retries),
            rows: BTreeMap::new(),
            live: HashMap::new(),
        }
    }

    pub(super) fn commit(&mut self, rows: Vec<(i64, String, bool)>) {
        for (seq, key, delayed) in rows {
            let place = if delayed { Place::Waiting } else { Place::Pending };
            let entry = Entry {
                key,
                place,
                in_retry: false,
                out_of_order: delayed,
                delivered: false,
                retry_count: 0,
                lost_count: 0,
            };
            self.rows.insert(seq, entry);
        }
    }

    /// A claim took only rows that were there to take, in order, and no key that another claim holds.
    pub(super) fn claimed(&mut self, claim: &Claim) {
        assert!(claim.events.is_sorted_by_key(|event| event.seq), "the claim is not in seq order");
        let seqs: Vec<i64> = claim.events.iter().map(|event| event.seq).collect();
        for event in &claim.events {
            let Event { seq, .. } = *event;
            let entry = self.rows.get(&seq).unwrap_or_else(|| panic!("row {seq} was never committed"));
            assert_eq!(entry.place, Place::Pending, "row {seq} was claimed");
            assert_eq!(entry.key, event.aggregate_id);
            assert_eq!(i64::from(event.retry_count), entry.retry_count, "retry_count of row {seq}");
            assert_eq!(i64::from(event.lost_count), entry.lost_count, "lost_count of row {seq}");
            let ordered =
                |other: &&Entry| other.key == entry.key && !other.out_of_order && !entry.out_of_order;
            let others = self.rows.values().filter(ordered).map(|other| other.place);
            let busy = others.filter(|place| matches!(place, Place::InFlight(_))).count();
            assert_eq!(busy, 0, "row {seq} was claimed while its key {} is in flight", entry.key);
        }
        for seq in &seqs {
            self.entry(*seq).place = Place::InFlight(claim.token);
        }
        assert!(self.live.insert(claim.token, seqs).is_none(), "a token was drawn twice");
    }

    fn entry(&mut self, seq: i64) -> &mut Entry {
        self.rows.get_mut(&seq).expect("a known row")
    }

    /// A sink has the event now. The first time, everything of its key before it is done with.
    pub(super) fn deliver(&mut self, seq: i64) {
        let entry = self.rows[&seq].clone();
        let skips = self.on_failed == OnFailed::Skip;
        // A stale owner may still send what was delivered, given up or discarded.
        let settled = matches!(entry.place, Place::Published | Place::Discarded)
            || skips && entry.place == Place::Failed;
        if entry.delivered || settled {
            return;
        }
        if !entry.out_of_order {
            let done = |other: &Entry| {
                other.delivered
                    || other.out_of_order
                    || matches!(other.place, Place::Published | Place::Discarded)
                    || skips && other.place == Place::Failed
            };
            let before = self.rows.range(..seq).filter(|(_, other)| other.key == entry.key && !done(other));
            let before: Vec<_> = before.map(|(seq, other)| (seq, other.place)).collect();
            assert!(before.is_empty(), "row {seq} of key {} was delivered before {before:?}", entry.key);
        }
        self.entry(seq).delivered = true;
    }

    /// The settle of a claim that was still there.
    pub(super) fn settled(&mut self, claim: &Claim, verdicts: &[Verdict]) {
        self.live.remove(&claim.token).expect("a live claim");
        for (event, verdict) in claim.events.iter().zip(verdicts) {
            let entry = self.entry(event.seq);
            match verdict {
                Verdict::Published { .. } => (entry.place, entry.in_retry) = (Place::Published, false),
                Verdict::Retry { .. } => {
                    (entry.place, entry.in_retry) = (Place::Waiting, true);
                    entry.retry_count += 1;
                }
                Verdict::Hold { .. } => (entry.place, entry.in_retry) = (Place::Waiting, true),
                Verdict::Failed { .. } => (entry.place, entry.in_retry) = (Place::Failed, false),
                Verdict::Release => entry.place = Place::Pending,
            }
        }
    }

    /// A claim was taken apart; `failed` when its row was given up.
    pub(super) fn swept(&mut self, token: i64, recovered: u64, failed: bool) {
        let seqs = self.live.remove(&token).expect("swept a claim that was not there");
        let (max_retries, alone) = (self.max_retries, seqs.len() == 1);
        assert_eq!(recovered, if failed { 0 } else { seqs.len() as u64 }, "rows recovered");
        for seq in seqs {
            let entry = self.entry(seq);
            assert_eq!(
                failed,
                alone && entry.lost_count >= max_retries,
                "row {seq} lost {} times",
                entry.lost_count
            );
            entry.lost_count += 1;
            entry.place = if failed { Place::Failed } else { Place::Pending };
            entry.in_retry &= !failed;
        }
    }

    pub(super) fn made_due(&mut self, seqs: &[i64]) {
        for (seq, entry) in &mut self.rows {
            if entry.place == Place::Waiting && (seqs.is_empty() || seqs.contains(seq)) {
                entry.place = Place::Pending;
            }
        }
    }

    pub(super) fn failed(&self) -> usize {
        self.rows.values().filter(|entry| entry.place == Place::Failed).count()
    }

    pub(super) fn operator(&mut self, retries: bool) {
        let blocks = self.on_failed == OnFailed::Block;
        for entry in self.rows.values_mut().filter(|entry| entry.place == Place::Failed) {
            if !retries {
                entry.place = Place::Discarded;
                continue;
            }
            (entry.retry_count, entry.lost_count) = (0, 0);
            (entry.place, entry.in_retry) = (Place::Pending, true);
            entry.out_of_order |= !blocks;
        }
    }

    /// Keys that surely have a row to claim: some row is pending, none is in flight, in retry, delayed, or failed and
    /// blocking.
    pub(super) fn free_keys(&self) -> Vec<&str> {
        let mut keys: BTreeMap<&str, (bool, bool)> = BTreeMap::new();
        for entry in self.rows.values() {
            let (free, pending) = keys.entry(&entry.key).or_insert((true, false));
            match entry.place {
                Place::Published | Place::Discarded => {}
                Place::Failed => *free &= self.on_failed == OnFailed::Skip,
                Place::Pending if !entry.in_retry && !entry.out_of_order => *pending = true,
                Place::Pending | Place::Waiting | Place::InFlight(_) => *free = false,
            }
        }
        keys.into_iter().filter(|&(_, (free, pending))| free && pending).map(|(key, _)| key).collect()
    }

    /// The database says the same.
    pub(super) fn assert_same(&self, stored: &[Row], deleted: bool) {
        let stored: BTreeMap<i64, &Row> = stored.iter().map(|row| (row.seq, row)).collect();
        for seq in stored.keys() {
            assert!(self.rows.contains_key(seq), "row {seq} is stored and was never committed");
        }
        for (seq, entry) in &self.rows {
            let Some(row) = stored.get(seq) else {
                assert!(deleted && entry.place == Place::Published, "row {seq} is lost: {entry:?}");
                continue;
            };
            let status = match entry.place {
                Place::Pending | Place::Waiting => "PENDING",
                Place::InFlight(_) => "PROCESSING",
                Place::Published => "PUBLISHED",
                Place::Failed | Place::Discarded => "FAILED",
            };
            assert_eq!(row.status, status, "row {seq}: {entry:?}, {row:?}");
            assert_eq!(row.failed, entry.place == Place::Failed, "row {seq}: {row:?}");
            assert_eq!(row.lost_count, entry.lost_count, "lost_count of row {seq}");
            if status == "PENDING" || status == "PROCESSING" {
                assert_eq!(row.retry_count, entry.retry_count, "retry_count of row {seq}");
            }
            if let Place::InFlight(token) = entry.place {
                assert_eq!(row.claim_token, Some(token), "row {seq}");
            }
            if entry.place == Place::Waiting {
                assert!(
                    matches!(row.available, Available::Later(_) | Available::Parked),
                    "row {seq}: {row:?}"
                );
            }
        }
    }
}
