//! Looks at queues and sinks now and then: gauges, readiness, and the alarm about queues that nobody serves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use outbox_store::QueueStats;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::outage::Outage;
use super::{BoundSink, Shared};
use crate::metrics;

/// Time between two looks. Scraping reads what the last look found.
const INTERVAL: Duration = Duration::from_secs(15);

/// Most time for one sink to answer.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between two lines about the same unserved queue.
const REMIND_EVERY: Duration = Duration::from_secs(10 * 60);

pub(super) const NAME: &str = "monitor";

/// Looks, and looks again, until the relay stops.
pub(super) async fn run(shared: Arc<Shared>, served: BTreeSet<String>) {
    let mut outage = Outage::default();
    let mut unserved = Unserved { served, reminded: BTreeMap::new() };
    while !shared.stop.is_cancelled() {
        shared.health.beat(NAME, INTERVAL * 4 + CHECK_TIMEOUT * 4);
        let pause = match shared.store.stats().await {
            Ok(stats) => {
                outage.over(&shared.health);
                record(&stats, &mut unserved);
                INTERVAL
            }
            Err(error) => outage.failed(&shared.health, "", "counting rows", &error),
        };
        futures_util::future::join_all(shared.sinks.values().map(|sink| check(&shared, sink))).await;
        tokio::select! {
            () = shared.stop.cancelled() => {}
            () = tokio::time::sleep(pause.max(Duration::from_secs(1))) => {}
        }
    }
}

fn record(stats: &[QueueStats], unserved: &mut Unserved) {
    for queue in stats {
        metrics::queue_gauges(queue);
        unserved.note(queue);
    }
    unserved.forget_all_but(stats);
    let last_seq = stats.iter().map(|queue| queue.last_seq).max().unwrap_or_default();
    ::metrics::counter!("outbox_enqueued_total").absolute(u64::try_from(last_seq).unwrap_or_default());
}

async fn check(shared: &Shared, sink: &BoundSink) {
    let deadline = Instant::now() + CHECK_TIMEOUT;
    let checked = timeout_at(deadline + CHECK_TIMEOUT / 10, sink.sink.check(deadline)).await;
    let checked = checked.unwrap_or_else(|_| Err(format!("no answer within {} s", CHECK_TIMEOUT.as_secs())));
    shared.health.sink_checked(&sink.name, checked);
}

/// Queues with rows that this relay is not configured for.
struct Unserved {
    served: BTreeSet<String>,
    /// When each was last said.
    reminded: BTreeMap<String, Instant>,
}

impl Unserved {
    /// A queue whose last row has gone is not in the statistics any more.
    fn forget_all_but(&mut self, stats: &[QueueStats]) {
        self.reminded.retain(|queue, _| {
            let is_there = stats.iter().any(|one| one.queue == *queue);
            if !is_there {
                metrics::unserved(queue, 0);
            }
            is_there
        });
    }

    fn note(&mut self, stats: &QueueStats) {
        if self.served.contains(&stats.queue) {
            return;
        }
        metrics::unserved(&stats.queue, stats.pending);
        if stats.pending == 0 {
            self.reminded.remove(&stats.queue);
            return;
        }
        let now = Instant::now();
        if self.reminded.get(&stats.queue).is_none_or(|at| now.duration_since(*at) >= REMIND_EVERY) {
            warn!(
                queue = stats.queue,
                rows = stats.pending,
                "rows wait in a queue that this relay does not serve; configure it under [queues], here or on another relay"
            );
            self.reminded.insert(stats.queue.clone(), now);
        }
    }
}
