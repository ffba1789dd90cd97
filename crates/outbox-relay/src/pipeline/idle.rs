//! How long a loop that found nothing waits before it looks again.

use std::time::Duration;

/// The first pause after work; also the shortest between two claims.
pub(super) const SHORTEST: Duration = Duration::from_millis(1);

/// The longest pause of an idle queue. A store that knows when rows come ends it earlier; this is for what no store sees.
const LONGEST: Duration = Duration::from_secs(1);

/// The longest pause between two tries for a lock that others hold.
const LONGEST_BUSY: Duration = Duration::from_millis(20);

/// Time between two looks at a paused queue.
pub(super) const PAUSED: Duration = Duration::from_millis(500);

/// Pauses that grow while nothing is found.
#[derive(Debug)]
pub(super) struct Idle {
    empty: Duration,
    busy: Duration,
}

impl Idle {
    pub(super) fn new() -> Self {
        Self { empty: SHORTEST, busy: SHORTEST }
    }

    pub(super) fn reset(&mut self) {
        *self = Self::new();
    }

    /// Nothing is ready; no longer than until the next row is due.
    pub(super) fn empty(&mut self, next_due: Option<Duration>) -> Duration {
        let pause = self.empty;
        self.empty = (self.empty * 2).min(LONGEST);
        self.busy = SHORTEST;
        next_due.map_or(pause, |due| pause.min(due.max(SHORTEST)))
    }

    /// Somebody else has the lock; at random, so that two do not meet again and again.
    pub(super) fn busy(&mut self) -> Duration {
        let pause = self.busy;
        self.busy = (self.busy * 2).min(LONGEST_BUSY);
        SHORTEST.max(pause.mul_f64(rand::random_range(0.5..1.5)))
    }

    /// All is in flight elsewhere.
    pub(super) fn held(&self) -> Duration {
        Duration::from_millis(rand::random_range(10..50))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_start_over_after_work() {
        let mut idle = Idle::new();
        let pauses: Vec<_> = (0..12).map(|_| idle.empty(None).as_millis()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000]);
        assert_eq!(idle.empty(Some(Duration::from_millis(7))).as_millis(), 7);
        assert_eq!(idle.empty(Some(Duration::ZERO)), SHORTEST);
        idle.reset();
        assert_eq!(idle.empty(None), SHORTEST);
    }

    #[test]
    fn no_pause_is_a_busy_loop() {
        let mut idle = Idle::new();
        assert!((0..1000).all(|_| idle.busy() >= SHORTEST && idle.busy() <= LONGEST_BUSY * 2));
    }
}
