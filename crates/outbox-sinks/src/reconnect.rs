//! When to try again to connect.

use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;

/// The first wait after a failure …
const FIRST: Duration = Duration::from_millis(100);
/// … and the longest.
const LONGEST: Duration = Duration::from_secs(5);

/// Exponential backoff with jitter between attempts to connect.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    not_before: Option<Instant>,
}

impl Backoff {
    /// When the next attempt may be made, if not at once.
    pub(crate) fn not_before(&self) -> Option<Instant> {
        self.not_before.filter(|at| *at > Instant::now())
    }

    /// An attempt failed.
    pub(crate) fn failed(&mut self) {
        let wait = FIRST.saturating_mul(2u32.saturating_pow(self.failures)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(Instant::now() + wait.mul_f64(rand::rng().random_range(0.5..=1.0)));
    }

    /// An attempt succeeded.
    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_grow_to_a_limit_and_end_with_success() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.not_before(), None);
        for failures in 0..40 {
            backoff.failed();
            let wait = backoff.not_before().unwrap() - Instant::now();
            let most = (FIRST * 2u32.pow(failures.min(10))).min(LONGEST);
            assert!(wait <= most && wait >= most / 2, "{failures}: {wait:?}");
        }
        tokio::time::advance(LONGEST).await;
        assert_eq!(backoff.not_before(), None, "the wait is over");
        backoff.failed();
        backoff.succeeded();
        assert_eq!(backoff.not_before(), None);
    }
}
