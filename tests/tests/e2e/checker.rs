//! The checker, after Jepsen's total-queue: multisets of attempted, committed and delivered events, plus the order of
//! first deliveries per key.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

/// What became of an insert, as its writer saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The commit was answered.
    Committed,
    /// The transaction was rolled back.
    RolledBack,
    /// The answer to the commit was lost: either may be true.
    Unknown,
}

/// One insert that a writer attempted.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) id: Uuid,
    pub(crate) key: String,
    /// Position among the attempts of its key. Writers of a key are serialised, so this is commit order.
    pub(crate) position: u64,
    pub(crate) fate: Fate,
}

/// What a run did, in figures.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) committed: usize,
    pub(crate) delivered: usize,
    pub(crate) lost: Vec<Uuid>,
    pub(crate) unexpected: Vec<Uuid>,
    pub(crate) duplicates: usize,
    /// (key, event delivered too late, event delivered before it)
    pub(crate) inversions: Vec<(String, Uuid, Uuid)>,
}

impl Report {
    pub(crate) fn assert_clean(&self) {
        let head = |ids: &[Uuid]| ids.iter().take(5).copied().collect::<Vec<_>>();
        assert!(self.lost.is_empty(), "lost {}: {:?}", self.lost.len(), head(&self.lost));
        assert!(
            self.unexpected.is_empty(),
            "unexpected {}: {:?}",
            self.unexpected.len(),
            head(&self.unexpected)
        );
        assert!(
            self.inversions.is_empty(),
            "{} inversions, first {:?}",
            self.inversions.len(),
            self.inversions.first()
        );
    }
}

/// Compares what was attempted with what arrived, in the order of arrival.
pub(crate) fn check(attempts: &[Attempt], deliveries: &[Uuid]) -> Report {
    let by_id: HashMap<Uuid, &Attempt> = attempts.iter().map(|attempt| (attempt.id, attempt)).collect();
    let mut report = Report {
        committed: attempts.iter().filter(|attempt| attempt.fate == Fate::Committed).count(),
        ..Report::default()
    };
    let mut seen = HashSet::new();
    let mut newest: HashMap<&str, &Attempt> = HashMap::new();
    for id in deliveries {
        let Some(attempt) = by_id.get(id).filter(|attempt| attempt.fate != Fate::RolledBack) else {
            report.unexpected.push(*id);
            continue;
        };
        if !seen.insert(*id) {
            report.duplicates += 1;
            continue;
        }
        report.delivered += 1;
        let last = newest.entry(&attempt.key).or_insert(attempt);
        if attempt.position < last.position {
            report.inversions.push((attempt.key.clone(), attempt.id, last.id));
        } else {
            *last = attempt;
        }
    }
    report.lost = attempts
        .iter()
        .filter(|attempt| attempt.fate == Fate::Committed && !seen.contains(&attempt.id))
        .map(|attempt| attempt.id)
        .collect();
    report
}

#[test]
fn the_checker_sees_loss_phantoms_duplicates_and_inversions() {
    let attempt = |position, fate| Attempt { id: Uuid::now_v7(), key: "a".into(), position, fate };
    let all = [
        attempt(0, Fate::Committed),
        attempt(1, Fate::Committed),
        attempt(2, Fate::RolledBack),
        attempt(3, Fate::Committed),
        attempt(4, Fate::Unknown),
    ];
    let stranger = Uuid::now_v7();
    let report = check(&all, &[all[1].id, all[0].id, all[1].id, all[2].id, stranger]);
    assert_eq!(report.lost, [all[3].id], "an unknown fate is no loss");
    assert_eq!(report.unexpected, [all[2].id, stranger]);
    assert_eq!((report.duplicates, report.delivered, report.committed), (1, 2, 3));
    assert_eq!(report.inversions, [("a".to_owned(), all[0].id, all[1].id)]);
    check(&all[..2], &[all[0].id, all[1].id]).assert_clean();
}
