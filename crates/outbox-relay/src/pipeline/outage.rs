//! A database that does not answer: said once, waited for with growing pauses.

use std::time::Duration;

use outbox_store::StoreError;
use tracing::{debug, error, info, warn};

use crate::health::Health;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const CONFLICT_PAUSE: Duration = Duration::from_millis(10);

/// One loop's run of store errors.
#[derive(Debug, Default)]
pub(super) struct Outage {
    failures: u32,
}

impl Outage {
    /// Takes note of an error and says how long to wait.
    pub(super) fn failed(
        &mut self,
        health: &Health,
        queue: &str,
        doing: &str,
        error: &StoreError,
    ) -> Duration {
        let first = self.failures == 0;
        self.failures = self.failures.saturating_add(1);
        match error {
            StoreError::Conflict(_) => {
                debug!(queue, doing, %error, "met a concurrent change");
                return spread(CONFLICT_PAUSE);
            }
            // All loops lose the database at once: the first one says so.
            StoreError::Unavailable(_) => {
                if health.store_down(error.to_string()) {
                    warn!(queue, doing, %error, "the database does not answer; waiting for it");
                } else {
                    debug!(queue, doing, %error, "the database still does not answer");
                }
            }
            StoreError::Unfit(_) | StoreError::Failed(_) if first => {
                error!(queue, doing, %error, "the database refuses; trying again with growing pauses");
            }
            StoreError::Unfit(_) | StoreError::Failed(_) => {
                debug!(queue, doing, %error, "the database still refuses");
            }
        }
        let doublings = (self.failures - 1).min(10);
        spread(FIRST_PAUSE.saturating_mul(1 << doublings).min(LONGEST_PAUSE))
    }

    /// Takes note that the store answered.
    pub(super) fn over(&mut self, health: &Health) {
        self.failures = 0;
        if health.store_up() {
            info!("the database answers again");
        }
    }

    pub(super) fn failures(&self) -> u32 {
        self.failures
    }
}

/// From half the pause to all of it, so that loops and relays do not come back together.
fn spread(pause: Duration) -> Duration {
    pause.mul_f64(rand::random_range(0.5..1.0))
}
