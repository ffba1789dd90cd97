//! How long a loop that found nothing waits before it looks again.

use std::time::Duration;

use tokio::time::Instant;

/// The shortest pause between two claims that found nothing.
pub(super) const SHORTEST: Duration = Duration::from_millis(1);

/// The pause of an idle queue. A store ends it as soon as rows come; this is for what no store sees.
const IDLE: Duration = Duration::from_secs(1);

/// The longest pause between two tries for a lock that others hold.
const LONGEST_BUSY: Duration = Duration::from_millis(20);

/// Time between two looks at a paused queue.
pub(super) const PAUSED: Duration = Duration::from_millis(500);

/// While rows trickle in, a claim gathers those of this time: a claim for each few of them would take the producers' CPU.
const GATHER: Duration = Duration::from_millis(5);

/// Pauses while little or nothing is found.
#[derive(Debug)]
pub(super) struct Idle {
    busy: Duration,
    /// When the last claim with rows began.
    rows_at: Option<Instant>,
}

impl Idle {
    pub(super) fn new() -> Self {
        Self { busy: SHORTEST, rows_at: None }
    }

    /// A claim that began then has found so many rows; says how much later than it the next one begins. The first rows
    /// after a while are followed at once, and so are many.
    pub(super) fn found(&mut self, began: Instant, rows: usize, batch: u32) -> Duration {
        self.busy = SHORTEST;
        let before = self.rows_at.replace(began);
        let few = rows * 2 < batch as usize;
        let trickle = before.is_some_and(|before| began.duration_since(before) < GATHER * 2);
        if few && trickle { GATHER } else { Duration::ZERO }
    }

    /// Nothing is ready; no longer than until the next row is due.
    pub(super) fn empty(&mut self, next_due: Option<Duration>) -> Duration {
        self.busy = SHORTEST;
        next_due.map_or(IDLE, |due| due.clamp(SHORTEST, IDLE))
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
    fn an_idle_queue_is_left_to_its_store_until_a_row_is_due() {
        let mut idle = Idle::new();
        assert_eq!(idle.empty(None), IDLE);
        assert_eq!(idle.empty(Some(Duration::from_millis(7))).as_millis(), 7);
        assert_eq!(idle.empty(Some(Duration::ZERO)), SHORTEST);
        assert_eq!(idle.empty(Some(IDLE * 2)), IDLE);
    }

    #[test]
    fn rows_that_trickle_in_are_gathered() {
        let (mut idle, begun) = (Idle::new(), Instant::now());
        let at = |millis| begun + Duration::from_millis(millis);
        assert_eq!(idle.found(at(0), 1, 100), Duration::ZERO, "the first is not waited with");
        assert_eq!(idle.found(at(3), 1, 100), GATHER);
        assert_eq!(idle.found(at(8), 50, 100), Duration::ZERO, "many need no more");
        assert_eq!(idle.found(at(13), 49, 100), GATHER);
        assert_eq!(idle.found(at(40), 1, 100), Duration::ZERO, "a while later");
        assert_eq!(idle.found(at(41), 1, 1), Duration::ZERO, "a full batch");
    }

    #[test]
    fn no_pause_is_a_busy_loop() {
        let mut idle = Idle::new();
        assert!((0..1000).all(|_| idle.busy() >= SHORTEST && idle.busy() <= LONGEST_BUSY * 2));
    }
}
