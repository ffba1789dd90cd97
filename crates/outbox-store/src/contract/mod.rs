//! The cases every store is tested with.
//!
//! A case is a function over a [`Harness`]: a fresh database that the case may look into and edit, and any number of
//! relays on it. [`for_each_case`](crate::for_each_case) lists them all, so that each engine's tests run every one.
//! Nothing sleeps: leases and schedules are moved by editing the database.

mod relay;
mod row;

pub mod blocked;
pub mod bytes;
pub mod claims;
pub mod concurrent;
pub mod late;
pub mod lease;
pub mod operator;
pub mod unordered;
pub mod verdicts;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::Store;
pub use relay::{Relay, labels, published, release, retry};
pub use row::{Available, Block, NewRow, Row, When, row};

/// One fresh database, migrated, and what a case may do to it behind the stores' backs.
#[async_trait]
pub trait Harness: Send + Sync {
    /// A further relay's store on this database: own connections, nothing shared.
    async fn store(&self) -> Arc<dyn Store>;

    /// A store on a new database without any tables.
    async fn unmigrated(&self) -> Arc<dyn Store>;

    /// Whether transactions of several writers can be open at once, and rows be locked one by one.
    fn concurrent_writers(&self) -> bool;

    /// A writer with an open transaction of its own. Where there is only one writer at a time it holds the lock.
    async fn begin(&self) -> Box<dyn Writer>;

    /// All rows by seq.
    async fn rows(&self) -> Vec<Row>;

    /// All blocks by key.
    async fn blocks(&self) -> Vec<Block>;

    /// Tokens of all claims.
    async fn claims(&self) -> Vec<i64>;

    /// (seq, relay, lease left) of each row that the view `outbox_in_flight` shows, by seq.
    async fn in_flight(&self) -> Vec<(i64, String, Duration)>;

    /// Lets every claim's lease run out.
    async fn expire_claims(&self);

    /// Lets these delayed or retried rows fall due now; all of them when none are named.
    async fn make_due(&self, seqs: &[i64]);

    /// Moves created_at, updated_at, settled_at and failed_at of every row back by this much.
    async fn age(&self, by: Duration);

    /// Removes the claims' rows as a restore of an older state would.
    async fn forget_claims(&self);

    /// Sets both counts of a row.
    async fn set_counts(&self, seq: i64, retry_count: i64, lost_count: i64);

    /// Makes a row look like one in retry (`error` set, due in `when`) or like a follower (`Parked`, no error).
    async fn park(&self, seq: i64, when: When, error: Option<&str>);

    /// Writes a block as if `hold_after`'s head had been delivered (released) or not.
    async fn put_block(&self, key: &str, hold_after: i64, released: bool);
}

/// An open transaction of an application.
#[async_trait]
pub trait Writer: Send {
    /// Inserts a row and returns the seq it drew.
    async fn insert(&mut self, row: &NewRow) -> i64;

    /// Locks a row as an application might. Only where [`Harness::concurrent_writers`].
    async fn lock_row(&mut self, seq: i64);

    /// Locks a queue as another relay's claim would. Only where [`Harness::concurrent_writers`].
    async fn lock_queue(&mut self, queue: &str);

    /// Makes it visible.
    async fn commit(self: Box<Self>);

    /// Takes it back.
    async fn rollback(self: Box<Self>);
}

/// Inserts rows in one transaction and returns their seqs.
pub async fn insert(h: &dyn Harness, rows: &[NewRow]) -> Vec<i64> {
    let mut writer = h.begin().await;
    let mut seqs = Vec::with_capacity(rows.len());
    for row in rows {
        seqs.push(writer.insert(row).await);
    }
    writer.commit().await;
    seqs
}

/// Calls `$each!(module, case)` for every case of the contract.
#[macro_export]
macro_rules! for_each_case {
    ($each:ident) => {
        $each!(claims, empty_queue);
        $each!(claims, equal_timestamps);
        $each!(claims, batch_is_the_limit);
        $each!(claims, key_in_flight_is_taken);
        $each!(claims, key_is_type_and_id_within_a_queue);
        $each!(claims, hot_key_in_flight_with_free_keys_behind);
        $each!(claims, due_row_beyond_a_cut_off_window_waits);
        $each!(claims, available_at_already_past_at_insert);
        $each!(claims, paused_queue);
        $each!(claims, row_locked_by_a_stranger);
        $each!(claims, follower_locked_by_a_stranger);
        $each!(claims, locked_queue_is_busy);
        $each!(claims, queues_do_not_meet);
        $each!(claims, wait_ends_with_a_new_row);
        $each!(blocked, retry_holds_the_key_and_nothing_else);
        $each!(blocked, delivered_head_lets_followers_out);
        $each!(blocked, retry_in_the_middle_of_a_batch);
        $each!(blocked, several_retries_of_one_key_in_one_settle);
        $each!(blocked, many_followers_through_several_retries);
        $each!(blocked, new_rows_queue_up_behind_released_followers);
        $each!(blocked, follower_becomes_the_next_head);
        $each!(blocked, many_blocked_keys_hold_their_rows);
        $each!(blocked, walk_stops_at_the_next_head);
        $each!(blocked, exhausted_keys_hide_no_followers);
        $each!(blocked, next_head_in_flight_keeps_the_key_busy);
        $each!(blocked, delayed_row_holds_nothing_back);
        $each!(blocked, delayed_row_takes_its_place_when_due);
        $each!(blocked, due_row_of_a_held_key_waits);
        $each!(blocked, hold_charges_nothing);
        $each!(blocked, skipped_head_lets_followers_out);
        $each!(late, nothing_of_an_open_transaction);
        $each!(late, late_commit_keeps_its_place);
        $each!(late, late_commit_is_found);
        $each!(late, late_commits_in_any_order);
        $each!(late, younger_transaction_draws_an_earlier_seq);
        $each!(late, late_commit_of_a_due_row);
        $each!(late, head_displaced_by_a_late_row);
        $each!(late, late_row_among_released_followers);
        $each!(lease, stale_settle_changes_nothing);
        $each!(lease, second_settle_is_stale);
        $each!(lease, expired_claim_settles_until_it_is_swept);
        $each!(lease, sweep_takes_expired_claims_one_by_one);
        $each!(lease, crash_between_claim_and_settle);
        $each!(lease, sweep_finds_every_kind_of_row);
        $each!(lease, rows_of_lost_claims_are_taken_fewer_and_fewer);
        $each!(lease, row_that_kills_relays_ends_failed);
        $each!(lease, row_in_company_is_not_given_up);
        $each!(lease, own_max_retries_bounds_lost_claims);
        $each!(lease, sweep_that_fails_a_head_follows_on_failed);
        $each!(lease, concurrent_sweeps);
        $each!(lease, processing_row_without_a_claim);
        $each!(lease, orphaned_head_of_a_held_key);
        $each!(verdicts, published_rows_are_kept_or_deleted);
        $each!(verdicts, failed_row_is_skipped);
        $each!(verdicts, failed_row_blocks_until_it_is_retried);
        $each!(verdicts, failed_row_blocks_again);
        $each!(verdicts, failed_follower_blocks);
        $each!(verdicts, released_rows_are_found_again);
        $each!(verdicts, released_tail_keeps_its_order);
        $each!(verdicts, all_verdicts_in_one_settle);
        $each!(verdicts, backoff_saturates);
        $each!(verdicts, retries_are_counted_until_given_up);
        $each!(operator, stats_count_each_state);
        $each!(operator, unserved_queue_is_seen);
        $each!(operator, register_twice);
        $each!(operator, failed_rows_are_listed);
        $each!(operator, failed_rows_are_retried);
        $each!(operator, retried_row_under_skip);
        $each!(operator, failed_rows_are_discarded);
        $each!(operator, retention_takes_delivered_rows);
        $each!(operator, failed_keep_for_takes_failed_rows);
        $each!(operator, in_flight_view);
        $each!(operator, migrations_run_once);
        $each!(operator, checkpoint_beside_work);
        $each!(bytes, byte_budget_bounds_a_claim);
        $each!(bytes, every_byte_comes_out_as_it_went_in);
        $each!(bytes, retried_row_keeps_its_bytes);
        $each!(unordered, urgent_rows_go_first);
        $each!(unordered, retry_holds_nothing_back);
        $each!(unordered, lease_and_delay_without_order);
        $each!(unordered, failed_and_orphaned_without_order);
        $each!(unordered, stranger_without_order);
        $each!(concurrent, ordered_relays_race);
        $each!(concurrent, ordered_relays_race_on_hot_keys);
        $each!(concurrent, unordered_relays_race);
        $each!(concurrent, migrations_race);
    };
}
