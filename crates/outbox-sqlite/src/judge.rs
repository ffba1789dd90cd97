//! What a claim decides, as pure functions over what it has read: which rows to take, which to park behind their
//! key's head, how far to look, and how far a key's followers may be let out.
//!
//! The rules are those of the claim in the design of the protocol. SQLite has one writer, so seq order is commit
//! order, and its indexes hold no dead entries: a claim looks from the beginning each time and needs no memory of
//! where the last one ended.

/// How a candidate became one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// available_at is NULL.
    Ready,
    /// available_at has passed.
    Due,
    /// Parked behind its key's head, which is delivered: let out by the walk.
    Follower,
}

/// A row that a claim has looked at.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) seq: i64,
    /// Index of its key in the claim's list of keys.
    pub(crate) key: usize,
    pub(crate) kind: Kind,
    /// PROCESSING; else PENDING.
    pub(crate) in_flight: bool,
    pub(crate) lost_count: u32,
    pub(crate) bytes: u64,
}

/// A key's row in `outbox_blocked_keys`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) hold_after: i64,
    pub(crate) released: bool,
    pub(crate) follow_from: i64,
}

/// What the walk found out about a released key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Walked {
    /// A row of it is in flight.
    pub(crate) busy: bool,
    /// A follower of it still waits.
    pub(crate) waits: bool,
}

/// What a claim knows of a key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeyState {
    pub(crate) block: Option<Block>,
    /// `None` for a released key that the walk had no room for: it counts as busy.
    pub(crate) walked: Option<Walked>,
}

/// How far a claim looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    /// Most ready, and most due rows.
    pub(crate) rows: u64,
    /// Most followers.
    pub(crate) followers: u64,
    /// Most rows parked.
    pub(crate) parked: u64,
}

/// What a pass over the windows came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) ready: u64,
    pub(crate) due: u64,
    /// The walk left followers unread.
    pub(crate) more_followers: bool,
    /// Rows that could be claimed, before weights and bytes.
    pub(crate) free: u64,
}

/// A batch is this many rows and bytes at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

/// What becomes of the candidates, by their index.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    /// Taken, in seq order.
    pub(crate) pick: Vec<usize>,
    /// To be parked behind their key's head.
    pub(crate) park: Vec<usize>,
    /// How many could be claimed, before weights and bytes.
    pub(crate) free: u64,
    /// Some candidate is in flight.
    pub(crate) in_flight: bool,
}

/// A windows' growth ends here, in batches.
const MOST_BATCHES: u64 = 64;

impl Windows {
    /// Where a claim begins: a batch beyond the rows in flight, which come first.
    pub(crate) fn first(limit: u64, in_flight: u64) -> Self {
        let rows = limit.saturating_add(in_flight).min(MOST_BATCHES * limit);
        Self { rows, followers: (limit / 16).max(1), parked: (limit / 2).max(1) }
    }

    /// The next larger windows, or nothing when these will do: enough can be claimed, they are as large as they get,
    /// or there is no more to see.
    pub(crate) fn grown(self, limit: u64, seen: Seen) -> Option<Self> {
        // A quarter, not half: one key with every second row would be met at the brink of a growth at each claim.
        let enough = seen.free * 4 >= limit;
        let more_followers = seen.more_followers && self.followers < limit;
        let all_seen = seen.ready < self.rows && seen.due < self.rows && !more_followers;
        if enough || self.rows >= MOST_BATCHES * limit || all_seen {
            return None;
        }
        // A grown window meets more blocked rows than half a batch: what is not parked would lie in the way of each
        // later claim.
        Some(Self { rows: (self.rows * 4).min(MOST_BATCHES * limit), followers: limit, parked: 4 * limit })
    }
}

/// Judges the candidates, which are in seq order. `ready_end` is the last seq of a ready window that was cut off,
/// `i64::MAX` of one that was not: a due row beyond it would overtake ready rows of its key that nobody has seen.
pub(crate) fn judge(
    candidates: &[Candidate],
    keys: &[KeyState],
    ready_end: i64,
    limits: Limits,
    most_parked: u64,
) -> Judged {
    let mut key_in_flight = vec![false; keys.len()];
    for row in candidates.iter().filter(|row| row.in_flight) {
        key_in_flight[row.key] = true;
    }
    let mut judged = Judged { in_flight: candidates.iter().any(|row| row.in_flight), ..Judged::default() };
    let (mut weight, mut bytes) = (0, 0);
    for (index, row) in candidates.iter().enumerate() {
        let key = &keys[row.key];
        if waits_behind_head(row, key) && (judged.park.len() as u64) < most_parked {
            judged.park.push(index);
        }
        let overtakes = row.kind == Kind::Due && row.seq > ready_end;
        if row.in_flight || key_in_flight[row.key] || overtakes || !passes_block(row, key) {
            continue;
        }
        judged.free += 1;
        // Running sums only grow, so what is taken is a prefix of what could be: no row passes one of its key.
        weight += 8_u64.pow(row.lost_count.min(7));
        bytes += row.bytes;
        if judged.free == 1 || weight <= limits.rows && bytes <= limits.bytes {
            judged.pick.push(index);
        }
    }
    judged
}

/// Parked: the row waits for the head of its key, or behind followers that wait. Behind the last followers in flight
/// it is left where it is.
fn waits_behind_head(row: &Candidate, key: &KeyState) -> bool {
    let Some(block) = key.block else { return false };
    let followers_wait = key.walked.is_none_or(|walked| walked.waits);
    !row.in_flight
        && row.kind != Kind::Follower
        && row.seq > block.hold_after
        && (!block.released || followers_wait)
}

fn passes_block(row: &Candidate, key: &KeyState) -> bool {
    let Some(block) = key.block else { return true };
    let busy = block.released && key.walked.is_none_or(|walked| walked.busy);
    !busy && (row.kind == Kind::Follower || row.seq <= block.hold_after)
}

/// A parked row of a released key: a follower, or one that is itself being retried.
#[derive(Clone, Debug)]
pub(crate) struct Parked {
    pub(crate) seq: i64,
    pub(crate) in_flight: bool,
    pub(crate) retried: bool,
    pub(crate) lost_count: u32,
    pub(crate) bytes: u64,
}

/// What the walk over a released key comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walk {
    /// Nothing waits: the block goes.
    Unblock,
    /// The next row is retried or FAILED, and comes first: it becomes the hold.
    Hold(i64),
    /// A row of the key is in flight.
    Busy,
    /// The first so many parked rows are followers that may go.
    Follow(usize),
}

/// Walks a released key's parked rows, which are in seq order. `failed` is its first FAILED row where that holds the
/// key. The walk never passes a row that is itself retried, nor the FAILED one.
pub(crate) fn walk(parked: &[Parked], failed: Option<i64>) -> Walk {
    let retried = parked.iter().find(|row| row.retried).map(|row| row.seq);
    let head = match (retried, failed) {
        (Some(retried), Some(failed)) => Some(retried.min(failed)),
        (retried, failed) => retried.or(failed),
    };
    let before = parked.iter().take_while(|row| head.is_none_or(|head| row.seq < head)).count();
    // A head that is in flight keeps its key busy and becomes the hold only when it is back: its claim may have been
    // told that there is no block, and would then publish the row without releasing it.
    let busy = parked.iter().take(before).any(|row| row.in_flight)
        || parked.get(before).is_some_and(|row| row.in_flight && head == Some(row.seq));
    match (busy, before, head) {
        (true, ..) => Walk::Busy,
        (false, 0, None) => Walk::Unblock,
        (false, 0, Some(head)) => Walk::Hold(head),
        (false, followers, _) => Walk::Follow(followers),
    }
}

/// A row of an unordered queue.
#[derive(Clone, Debug)]
pub(crate) struct Loose {
    pub(crate) seq: i64,
    pub(crate) priority: i64,
    pub(crate) lost_count: u32,
    pub(crate) bytes: u64,
}

/// Takes rows of an unordered queue, urgent ones first, then by seq; a row may be among the candidates twice.
pub(crate) fn pick_loose(mut rows: Vec<Loose>, limits: Limits) -> Vec<i64> {
    rows.sort_unstable_by_key(|row| (-row.priority, row.seq));
    rows.dedup_by_key(|row| row.seq);
    let (mut weight, mut bytes) = (0, 0);
    let fits = |(index, row): &(usize, Loose)| {
        weight += 8_u64.pow(row.lost_count.min(7));
        bytes += row.bytes;
        *index == 0 || weight <= limits.rows && bytes <= limits.bytes
    };
    rows.into_iter().enumerate().take_while(fits).map(|(_, row)| row.seq).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { rows: 500, bytes: 1 << 20 };

    fn row(seq: i64, key: usize, kind: Kind) -> Candidate {
        Candidate { seq, key, kind, in_flight: false, lost_count: 0, bytes: 10 }
    }

    fn in_flight(seq: i64, key: usize, kind: Kind) -> Candidate {
        Candidate { in_flight: true, ..row(seq, key, kind) }
    }

    fn held(hold_after: i64) -> KeyState {
        KeyState { block: Some(Block { hold_after, released: false, follow_from: hold_after }), walked: None }
    }

    fn released(hold_after: i64, walked: Option<Walked>) -> KeyState {
        KeyState { block: Some(Block { hold_after, released: true, follow_from: hold_after }), walked }
    }

    fn judged(candidates: &[Candidate], keys: &[KeyState]) -> Judged {
        judge(candidates, keys, i64::MAX, LIMITS, 250)
    }

    #[test]
    fn free_rows_are_taken_and_keys_in_flight_left() {
        let rows = [
            row(1, 0, Kind::Ready),
            in_flight(2, 1, Kind::Ready),
            row(3, 1, Kind::Ready),
            row(4, 0, Kind::Ready),
        ];
        let got = judged(&rows, &[KeyState::default(); 2]);
        assert_eq!((got.pick, got.park, got.free, got.in_flight), (vec![0, 3], vec![], 2, true));
    }

    #[test]
    fn rows_behind_a_held_head_are_parked_and_the_head_goes() {
        let rows = [row(5, 0, Kind::Due), row(6, 0, Kind::Ready), row(7, 1, Kind::Ready)];
        let got = judged(&rows, &[held(5), KeyState::default()]);
        assert_eq!((got.pick, got.park), (vec![0, 2], vec![1]));
    }

    #[test]
    fn only_so_many_are_parked() {
        let rows: Vec<_> = (6..20).map(|seq| row(seq, 0, Kind::Ready)).collect();
        assert_eq!(judge(&rows, &[held(5)], i64::MAX, LIMITS, 4).park, vec![0, 1, 2, 3]);
        assert_eq!((Windows::first(8, 0).parked, Windows::first(1, 0).parked), (4, 1), "half a batch");
    }

    #[test]
    fn ready_rows_of_a_released_key_wait_behind_followers() {
        let rows = [row(6, 0, Kind::Follower), row(9, 0, Kind::Ready)];
        let follows = released(5, Some(Walked { busy: false, waits: true }));
        assert_eq!(
            judged(&rows, &[follows]),
            Judged { pick: vec![0], park: vec![1], free: 1, in_flight: false }
        );
        // The last followers are in flight: the ready row is neither parked nor taken.
        let busy = released(5, Some(Walked { busy: true, waits: false }));
        assert_eq!(judged(&rows[1..], &[busy]), Judged::default());
        // The walk had no room for the key.
        let unread = released(5, None);
        assert_eq!(judged(&rows[1..], &[unread]), Judged { park: vec![0], ..Judged::default() });
    }

    #[test]
    fn a_due_row_beyond_a_window_that_was_cut_off_is_no_candidate() {
        let rows = [row(1, 0, Kind::Ready), row(2, 0, Kind::Ready), row(8, 1, Kind::Due)];
        let keys = [KeyState::default(); 2];
        assert_eq!(judge(&rows, &keys, 2, LIMITS, 250).pick, vec![0, 1]);
        assert_eq!(judge(&rows, &keys, i64::MAX, LIMITS, 250).pick, vec![0, 1, 2]);
    }

    #[test]
    fn rows_of_lost_claims_weigh_eight_times_more_each_time() {
        let taken = |lost_count| {
            let rows: Vec<_> =
                (0..600).map(|seq| Candidate { lost_count, ..row(seq, 0, Kind::Ready) }).collect();
            judged(&rows, &[KeyState::default()]).pick.len()
        };
        assert_eq!(
            [taken(0), taken(1), taken(2), taken(3), taken(4), taken(u32::MAX)],
            [500, 62, 7, 1, 1, 1]
        );
    }

    #[test]
    fn bytes_bound_a_claim_but_one_row_always_goes() {
        let sized = |seq, bytes| Candidate { bytes, ..row(seq, 0, Kind::Ready) };
        let keys = [KeyState::default()];
        assert_eq!(judged(&[sized(1, 5 << 20), sized(2, 1)], &keys).pick, vec![0]);
        assert_eq!(judged(&[sized(1, 1 << 19), sized(2, 1 << 19), sized(3, 1)], &keys).pick, vec![0, 1]);
    }

    #[test]
    fn windows_grow_while_little_can_be_claimed_and_there_is_more() {
        let first = Windows::first(500, 0);
        assert_eq!(first, Windows { rows: 500, followers: 31, parked: 250 });
        assert_eq!(Windows::first(500, 800).rows, 1300);
        assert_eq!(Windows::first(500, u64::MAX).rows, 64 * 500);
        let full = Seen { ready: 500, due: 0, more_followers: false, free: 124 };
        assert_eq!(first.grown(500, full), Some(Windows { rows: 2000, followers: 500, parked: 2000 }));
        assert_eq!(first.grown(500, Seen { free: 125, ..full }), None);
        assert_eq!(first.grown(500, Seen { ready: 499, ..full }), None);
        let followers = Seen { ready: 0, more_followers: true, ..full };
        assert_eq!(first.grown(500, followers), Some(Windows { rows: 2000, followers: 500, parked: 2000 }));
        assert_eq!(Windows { rows: 2000, followers: 500, parked: 2000 }.grown(500, followers), None);
        let mut windows = first;
        while let Some(larger) =
            windows.grown(500, Seen { ready: u64::MAX, due: 0, more_followers: false, free: 0 })
        {
            windows = larger;
        }
        assert_eq!(windows.rows, 64 * 500);
    }

    fn parked(seq: i64, in_flight: bool, retried: bool) -> Parked {
        Parked { seq, in_flight, retried, lost_count: 0, bytes: 0 }
    }

    #[test]
    fn a_walk_lets_followers_out_up_to_the_next_head() {
        let rows = [
            parked(6, false, false),
            parked(7, false, false),
            parked(8, false, true),
            parked(9, false, false),
        ];
        assert_eq!(walk(&rows, None), Walk::Follow(2));
        assert_eq!(walk(&rows[2..], None), Walk::Hold(8));
        assert_eq!(walk(&rows, Some(7)), Walk::Follow(1));
        assert_eq!(walk(&rows, Some(6)), Walk::Hold(6));
        assert_eq!(walk(&[], Some(6)), Walk::Hold(6));
        assert_eq!(walk(&[], None), Walk::Unblock);
    }

    #[test]
    fn one_in_flight_keeps_the_key_busy() {
        assert_eq!(walk(&[parked(6, true, false), parked(7, false, false)], None), Walk::Busy);
        assert_eq!(walk(&[parked(6, false, false), parked(7, true, false)], None), Walk::Busy);
        // A head in flight is not yet the hold.
        assert_eq!(walk(&[parked(6, true, true), parked(7, false, false)], None), Walk::Busy);
        // Beyond the head nothing matters.
        assert_eq!(walk(&[parked(6, false, true), parked(7, true, false)], None), Walk::Hold(6));
    }

    #[test]
    fn unordered_rows_go_by_priority_then_seq() {
        let loose = |seq, priority, lost_count| Loose { seq, priority, lost_count, bytes: 1 };
        let rows = vec![loose(9, 5, 0), loose(1, 0, 0), loose(2, 0, 0), loose(9, 5, 0), loose(7, 1, 0)];
        assert_eq!(pick_loose(rows, Limits { rows: 3, bytes: 100 }), vec![9, 7, 1]);
        assert_eq!(pick_loose(vec![loose(1, 0, 9), loose(2, 0, 0)], Limits { rows: 3, bytes: 100 }), vec![1]);
        assert_eq!(pick_loose(vec![], LIMITS), Vec::<i64>::new());
    }
}
