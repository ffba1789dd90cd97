use std::time::{Duration, Instant};

use time::OffsetDateTime;

use crate::Event;

/// Rows that one relay owns until it settles them or their lease runs out.
#[derive(Debug)]
pub struct Claim {
    /// Names the claim; drawn at random by the claimer. Deleting its row is what owns the right to settle.
    pub token: i64,
    /// The rows in seq order (by priority, then seq, in an unordered queue); never empty.
    pub events: Vec<Event>,
    /// The database's clock when the claim was made; with `sent_at` it dates what happens later without trusting the
    /// relay's wall clock.
    pub claimed_at: OffsetDateTime,
    /// The relay's monotonic clock just before the claim was sent. Deadlines count from here: the lease cannot have
    /// begun earlier.
    pub sent_at: Instant,
}

/// What a claim found.
#[derive(Debug)]
pub enum Claimed {
    /// Rows to deliver.
    Rows(Claim),
    /// Nothing is ready; the next delayed or retried row is due in this time.
    Empty {
        /// Time until the next due row by the database's clock; `None` when no row waits for a time.
        next_due: Option<Duration>,
    },
    /// Another claimer holds the queue's lock, rows were only parked, or a stranger's row lock is in the way: claim
    /// again within milliseconds.
    Busy,
    /// All there is, is in flight or waits for what is: claim again after a settle.
    Held,
    /// An operator has paused the queue.
    Paused,
}

/// What is to become of one claimed row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The sink acknowledged it durably.
    Published {
        /// Where it went, in the sink's own terms.
        receipt: Option<String>,
    },
    /// Try again after a delay; the attempt is charged and the key waits behind the row.
    Retry {
        /// Time until it is due, on the database's clock.
        after: Duration,
        /// Why, for `last_error`.
        error: String,
    },
    /// As `Retry`, but nothing is charged: the destination is to blame, not the event.
    Hold {
        /// Time until it is due, on the database's clock.
        after: Duration,
        /// Why, for `last_error`.
        error: String,
    },
    /// Given up: FAILED, visible and requeueable.
    Failed {
        /// Why, for `last_error`.
        error: String,
    },
    /// PENDING again where it was; nothing charged.
    Release,
}

/// What a settle did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Every row of the claim has its verdict.
    Done,
    /// The claim is gone: another owner has the rows, and nothing was changed.
    LeaseLost,
}
