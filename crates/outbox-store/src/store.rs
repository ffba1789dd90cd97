use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::{
    Claim, Claimed, FailedEvent, QueuePolicy, QueueStats, SchemaState, Selection, Settled, Swept, Verdict,
    WalCheckpoint,
};

/// Why an operation did not happen. Nothing of it is left behind, except after `Unavailable`: a commit whose answer
/// was lost may have happened, which is why a claim or settle that ends so is left to the lease.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached, refused, or did not answer in time.
    #[error("database unavailable: {0}")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Somebody else changed the same rows meanwhile; the same call again will do.
    #[error("conflict with a concurrent change: {0}")]
    Conflict(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The database is not as this binary needs it; the text says what to do.
    #[error("{0}")]
    Unfit(String),
    /// Anything else: a statement failed, a value could not be read.
    #[error("database error: {0}")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// The database of an outbox, as one relay uses it.
///
/// Every operation is atomic. None holds a lock between calls. Leases and schedules are decided by the database's
/// clock alone. Deadlines are the store's own: a call returns [`StoreError::Unavailable`] rather than hang.
#[async_trait]
pub trait Store: Send + Sync {
    /// How the schema stands to what this binary needs. Works on a database without outbox tables.
    async fn schema_state(&self) -> Result<SchemaState, StoreError>;

    /// Applies the migrations that are missing; returns the versions applied, none when there was nothing to do. Safe
    /// to run from several processes at once.
    async fn migrate(&self) -> Result<Vec<i64>, StoreError>;

    /// Makes the queues known, so that they can be locked and paused. Called at start for each configured queue.
    async fn register_queues(&self, queues: &[&str]) -> Result<(), StoreError>;

    /// A claimer with an empty memory. One per queue and relay at a time.
    fn claimer(&self, policy: Arc<QueuePolicy>) -> Box<dyn Claimer>;

    /// Gives each row of the claim its verdict: `verdicts[i]` is for `claim.events[i]`, and there must be as many.
    ///
    /// Fenced: when the claim is gone nothing is changed and the answer is [`Settled::LeaseLost`].
    async fn settle(
        &self,
        policy: &QueuePolicy,
        claim: &Claim,
        verdicts: &[Verdict],
    ) -> Result<Settled, StoreError>;

    /// Takes one expired claim of the queue apart, in one transaction; `None` when none has expired. Safe to run from
    /// several relays at once.
    async fn sweep(&self, policy: &QueuePolicy) -> Result<Option<Swept>, StoreError>;

    /// Returns PROCESSING rows whose claim does not exist (a restore, hand-written SQL) to PENDING once they have not
    /// been touched for a lease; says how many. Reads all of the queue's unsettled rows: for the start and hourly.
    async fn recover_orphans(&self, policy: &QueuePolicy) -> Result<u64, StoreError>;

    /// Deletes at most `limit` rows that have outlived the queue's retention: PUBLISHED and discarded ones after
    /// `keep_for`, FAILED ones after `failed_keep_for` where set. Says how many; fewer than `limit` means done.
    async fn purge(&self, policy: &QueuePolicy, limit: u32) -> Result<u64, StoreError>;

    /// Moves the WAL into the database without blocking anyone (SQLite); `None` where there is no such thing.
    async fn checkpoint(&self) -> Result<Option<WalCheckpoint>, StoreError>;

    /// How every queue stands that is registered or has unsettled or FAILED rows, sorted by name. Bounded work: counts
    /// stop at a limit that each store documents.
    async fn stats(&self) -> Result<Vec<QueueStats>, StoreError>;

    /// Pauses or resumes a queue; claims in flight are settled as usual.
    async fn set_paused(&self, queue: &str, paused: bool) -> Result<(), StoreError>;

    /// FAILED rows in the order of their failing, newest first, at most `limit`.
    async fn failed(&self, selection: &Selection, limit: u32) -> Result<Vec<FailedEvent>, StoreError>;

    /// Puts FAILED rows back to PENDING with both counts at 0; says how many. Under [`crate::OnFailed::Block`] a row keeps its
    /// place in its key, else it comes after what was delivered meanwhile.
    async fn retry_failed(&self, selection: &Selection) -> Result<u64, StoreError>;

    /// Gives FAILED rows up for good: status FAILED, failed_at NULL, receipt [`crate::DISCARDED`], kept until retention takes them;
    /// says how many. Releases keys that waited behind them.
    async fn discard_failed(&self, selection: &Selection) -> Result<u64, StoreError>;

    /// One cheap round trip: is the database there?
    async fn ping(&self) -> Result<(), StoreError>;

    /// Closes all connections.
    async fn close(&self);
}

/// Claims rows of one queue, with the memory of where its scans start.
#[async_trait]
pub trait Claimer: Send {
    /// Takes what can be delivered now, oldest first, within the policy's limits. An error resets the memory.
    async fn claim(&mut self) -> Result<Claimed, StoreError>;

    /// Returns when there may be new rows, or after `at_most` at the latest. Cheap to wait in; early returns are fine.
    async fn wait(&mut self, at_most: Duration);
}
