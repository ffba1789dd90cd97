//! The relay's metrics: names, what they mean, and each queue's handles.

use std::time::Duration;

use metrics::{
    Counter, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use outbox_store::QueueStats;

/// Tells the recorder what each metric means. Called when a relay starts; harmless when repeated.
pub fn describe() {
    describe_gauges();
    describe_counters();
    describe_histogram!(
        "outbox_end_to_end_seconds",
        Unit::Seconds,
        "From the insert of an event to its acknowledgement"
    );
    describe_histogram!("outbox_wait_seconds", Unit::Seconds, "From the insert of an event to its claim");
    describe_histogram!("outbox_claim_seconds", Unit::Seconds, "Time of a claim that found events");
    describe_histogram!("outbox_settle_seconds", Unit::Seconds, "Time of a settle");
}

fn describe_gauges() {
    describe_gauge!("outbox_pending", "Events that wait: ready, delayed, retried or parked");
    describe_gauge!("outbox_oldest_pending_age_seconds", Unit::Seconds, "Age of the oldest ready event");
    describe_gauge!("outbox_processing", "Events in a claim");
    describe_gauge!("outbox_failed", "Events given up and not discarded");
    describe_gauge!("outbox_blocked_keys", "Keys that wait behind a retried or failed event");
    describe_gauge!("outbox_unserved", "Events that wait in a queue that this relay does not serve");
    describe_gauge!("outbox_sink_up", "1 while the sink's breaker is closed");
    describe_gauge!("outbox_wal_bytes", Unit::Bytes, "Size of SQLite's WAL at the last checkpoint");
    describe_gauge!(
        "outbox_wal_checkpoint_age_seconds",
        Unit::Seconds,
        "Time since all of the WAL was moved"
    );
}

fn describe_counters() {
    describe_counter!("outbox_published_total", "Events acknowledged and settled as PUBLISHED");
    describe_counter!("outbox_publish_errors_total", "Events that were not accepted, by who is to blame");
    describe_counter!("outbox_retries_total", "Events put back to be tried again, charged to the event");
    describe_counter!("outbox_held_total", "Events put back because of their destination, nothing charged");
    describe_counter!(
        "outbox_lease_lost_total",
        "Claims that another owner had taken over before they were settled"
    );
    describe_counter!("outbox_claims_expired_total", "Claims whose lease ran out, taken apart by the sweep");
    describe_counter!("outbox_scan_misses_total", "Rows that only a scan from the start found; must stay 0");
    describe_counter!("outbox_lock_retries_total", "Tries for a database lock that was taken");
    describe_counter!(
        "outbox_enqueued_total",
        "Events ever inserted into this database, from the highest seq"
    );
    describe_counter!("outbox_sweep_errors_total", "Sweeps that failed");
}

/// One queue's metrics that are written for every event or batch.
pub(crate) struct QueueMetrics {
    pub(crate) published: Counter,
    pub(crate) retries: Counter,
    pub(crate) held: Counter,
    pub(crate) lease_lost: Counter,
    end_to_end: Histogram,
    wait: Histogram,
    claim: Histogram,
    settle: Histogram,
    queue: String,
    sink: String,
}

impl QueueMetrics {
    pub(crate) fn new(queue: &str, sink: &str) -> Self {
        let (queue, sink) = (queue.to_owned(), sink.to_owned());
        Self {
            published: counter!("outbox_published_total", "queue" => queue.clone(), "sink" => sink.clone()),
            retries: counter!("outbox_retries_total", "queue" => queue.clone()),
            held: counter!("outbox_held_total", "queue" => queue.clone()),
            lease_lost: counter!("outbox_lease_lost_total", "queue" => queue.clone()),
            end_to_end: histogram!("outbox_end_to_end_seconds", "queue" => queue.clone()),
            wait: histogram!("outbox_wait_seconds", "queue" => queue.clone()),
            claim: histogram!("outbox_claim_seconds", "queue" => queue.clone()),
            settle: histogram!("outbox_settle_seconds", "queue" => queue.clone()),
            queue,
            sink,
        }
    }

    pub(crate) fn claimed(&self, took: Duration, waits: impl Iterator<Item = time::Duration>) {
        self.claim.record(took);
        waits.for_each(|wait| self.wait.record(not_negative(wait)));
    }

    pub(crate) fn acked(&self, age: time::Duration) {
        self.end_to_end.record(not_negative(age));
    }

    pub(crate) fn settled(&self, took: Duration) {
        self.settle.record(took);
    }

    /// Errors are rare enough to look the counter up.
    pub(crate) fn publish_error(&self, cause: &'static str) {
        let (queue, sink) = (self.queue.clone(), self.sink.clone());
        counter!("outbox_publish_errors_total", "queue" => queue, "sink" => sink, "cause" => cause)
            .increment(1);
    }
}

/// A clock that was set back makes an event seem to come from the future.
fn not_negative(time: time::Duration) -> f64 {
    time.as_seconds_f64().max(0.0)
}

#[allow(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub(crate) fn queue_gauges(stats: &QueueStats) {
    let queue = stats.queue.as_str();
    let set = |name: &'static str, value: u64| gauge!(name, "queue" => queue.to_owned()).set(value as f64);
    set("outbox_pending", stats.pending);
    set("outbox_processing", stats.processing);
    set("outbox_failed", stats.failed);
    set("outbox_blocked_keys", stats.blocked_keys);
    let age = stats.oldest_pending_age.unwrap_or_default().as_secs_f64();
    gauge!("outbox_oldest_pending_age_seconds", "queue" => queue.to_owned()).set(age);
}

#[allow(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub(crate) fn unserved(queue: &str, rows: u64) {
    gauge!("outbox_unserved", "queue" => queue.to_owned()).set(rows as f64);
}

pub(crate) fn sink_up(sink: &str, up: bool) {
    gauge!("outbox_sink_up", "sink" => sink.to_owned()).set(if up { 1.0 } else { 0.0 });
}
