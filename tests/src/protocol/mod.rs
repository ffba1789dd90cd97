//! The claim protocol, searched exhaustively.
//!
//! The world: relays, one ordered key with a few rows among other keys' rows (which only move the scan's start), claims
//! of at most a few rows, followers parked behind a head in retry and let out once it is delivered, writers that draw
//! their seq early and commit late. One action is one database transaction or one publish. A relay may act on a claim
//! after it ran out, answers get lost after delivery, relays crash and forget, a head runs out of retries (and is
//! skipped, or blocks until the operator acts). A claim is one atomic step, and there are no delayed rows.
//!
//! What is checked: *order* — rows whose commits came in some order are first delivered in that order (with serialised
//! writers that is seq order); *live* — from every reachable state all rows can still end with nothing left blocked.

mod claim;
mod search;
mod state;
mod step;

pub use search::{Outcome, search};

/// Size of the world, and which of the protocol's rules hold in it.
#[derive(Clone, Copy, Debug)]
pub struct World {
    /// Rows of the key, at most 5.
    pub rows: usize,
    /// Most rows in a claim.
    pub batch: usize,
    /// Most followers in a claim.
    pub followers: usize,
    /// Retries until a row is given up.
    pub retries: u8,
    /// 1 or 2 relays.
    pub relays: usize,
    /// The key's writers are serialised: a seq is drawn only when the one before has committed.
    pub serial: bool,
    /// A row that is given up blocks its key.
    pub block: bool,
    /// Relays may crash.
    pub crash: bool,
    /// Stop after so many states.
    pub max_states: usize,
    /// The rules.
    pub rules: Rules,
}

/// Rules of the protocol, each of which can be dropped to see that it is needed.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The scan's start goes back for transactions that were in progress.
    pub watch: bool,
    /// The walk over followers never passes a row that is itself in retry.
    pub stop: bool,
    /// A block stays while followers are in flight.
    pub fresh: bool,
    /// Ready rows behind a head in retry are parked.
    pub park_all: bool,
    /// Rows in flight hold the scan's start down.
    pub hold: bool,
}

impl Default for World {
    fn default() -> Self {
        let rules = Rules { watch: true, stop: true, fresh: true, park_all: true, hold: true };
        Self {
            rows: 3,
            batch: 2,
            followers: 1,
            retries: 1,
            relays: 2,
            serial: false,
            block: false,
            crash: true,
            max_states: 4_000_000,
            rules,
        }
    }
}
