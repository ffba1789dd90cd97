//! One breaker a sink: while the sink is down no queue claims for it, and one probe batch at a time finds out whether
//! it is back.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Time to the first probe.
const FIRST_PROBE: Duration = Duration::from_millis(100);

/// Longest time between two probes, unless the sink itself asks for more.
const LAST_PROBE: Duration = Duration::from_secs(15);

/// A sink's wish to be left alone is honoured up to here.
const LONGEST_WISH: Duration = Duration::from_secs(60 * 60);

/// What a batch showed of its sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SinkHealth {
    /// It answered.
    Up,
    /// It is to blame for at least one message.
    Down {
        /// Why, of the first such message.
        error: String,
        /// The longest wish to be left alone.
        retry_after: Option<Duration>,
    },
    /// Nothing was sent.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Closed,
    /// Nobody may claim before `until`; then one may probe.
    Open {
        until: Instant,
        failures: u32,
    },
    Probing {
        failures: u32,
    },
}

/// What changed when a batch reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Opened,
    Closed,
    None,
}

pub(crate) struct Breaker {
    state: watch::Sender<State>,
}

/// The right to claim one batch for the sink.
pub(crate) struct Permit {
    breaker: Arc<Breaker>,
    probe: bool,
}

impl Breaker {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { state: watch::Sender::new(State::Closed) })
    }

    pub(crate) fn is_closed(&self) -> bool {
        *self.state.borrow() == State::Closed
    }

    /// Waits until a batch may be claimed. Cancel-safe.
    pub(crate) async fn permit(self: &Arc<Self>) -> Permit {
        let mut changes = self.state.subscribe();
        loop {
            let state = *changes.borrow_and_update();
            match state {
                State::Closed => return Permit { breaker: Arc::clone(self), probe: false },
                State::Open { until, .. } if until <= Instant::now() => {
                    if self.begin_probe() {
                        return Permit { breaker: Arc::clone(self), probe: true };
                    }
                }
                State::Open { until, .. } => {
                    tokio::select! {
                        () = sleep_until(until) => {}
                        // The sender is `self`: it cannot be gone.
                        _ = changes.changed() => {}
                    }
                }
                State::Probing { .. } => {
                    let _ = changes.changed().await;
                }
            }
        }
    }

    fn begin_probe(&self) -> bool {
        self.state.send_if_modified(|state| match *state {
            State::Open { until, failures } if until <= Instant::now() => {
                *state = State::Probing { failures };
                true
            }
            _ => false,
        })
    }

    /// Takes note of what a batch showed. `spread` is a random number from 0 to 1.
    fn report(&self, probe: bool, health: &SinkHealth, spread: f64) -> Change {
        let mut change = Change::None;
        self.state.send_if_modified(|state| {
            let next = match (health, *state) {
                (SinkHealth::Up, State::Closed) | (SinkHealth::Unknown, State::Closed) => return false,
                (SinkHealth::Up, _) => {
                    change = Change::Closed;
                    State::Closed
                }
                (SinkHealth::Down { retry_after, .. }, State::Closed) => {
                    change = Change::Opened;
                    State::Open { until: next_probe(1, *retry_after, spread), failures: 1 }
                }
                (SinkHealth::Down { retry_after, .. }, State::Probing { failures }) if probe => {
                    let failures = failures.saturating_add(1);
                    State::Open { until: next_probe(failures, *retry_after, spread), failures }
                }
                (SinkHealth::Unknown, State::Probing { failures }) if probe => {
                    State::Open { until: Instant::now(), failures }
                }
                // A batch from before the outage says nothing new.
                _ => return false,
            };
            *state = next;
            true
        });
        change
    }
}

impl Permit {
    pub(crate) fn is_probe(&self) -> bool {
        self.probe
    }

    /// Gives the permit back with what the batch showed.
    pub(crate) fn report(mut self, health: &SinkHealth, spread: f64) -> Change {
        let probe = std::mem::take(&mut self.probe);
        self.breaker.report(probe, health, spread)
    }
}

impl Drop for Permit {
    /// A probe that found nothing to claim leaves its place to others.
    fn drop(&mut self) {
        if self.probe {
            self.breaker.report(true, &SinkHealth::Unknown, 0.0);
        }
    }
}

/// Doubles from probe to probe; half of the delay is random, so that relays do not probe together.
fn next_probe(failures: u32, retry_after: Option<Duration>, spread: f64) -> Instant {
    let doublings = failures.saturating_sub(1).min(16);
    let delay = FIRST_PROBE.saturating_mul(1 << doublings).min(LAST_PROBE);
    let delay = delay.mul_f64(0.5 + spread.clamp(0.0, 1.0) / 2.0);
    Instant::now() + delay.max(retry_after.unwrap_or_default().min(LONGEST_WISH))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn down() -> SinkHealth {
        SinkHealth::Down { error: "refused".into(), retry_after: None }
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_opens_it_and_an_answer_closes_it() {
        let breaker = Breaker::new();
        assert_eq!(breaker.permit().await.report(&down(), 1.0), Change::Opened);
        assert!(!breaker.is_closed());
        let began = Instant::now();
        let probe = breaker.permit().await;
        assert!(probe.is_probe());
        assert_eq!(began.elapsed().as_millis(), 100);
        assert_eq!(probe.report(&SinkHealth::Up, 1.0), Change::Closed);
        assert!(!breaker.permit().await.is_probe());
    }

    #[tokio::test(start_paused = true)]
    async fn probes_come_one_at_a_time_and_ever_more_rarely() {
        let breaker = Breaker::new();
        breaker.permit().await.report(&down(), 1.0);
        let mut waits = Vec::new();
        for _ in 0..10 {
            let began = Instant::now();
            let probe = breaker.permit().await;
            waits.push(began.elapsed().as_millis());
            let second = tokio::time::timeout(Duration::from_secs(3600), breaker.permit()).await;
            assert!(second.is_err(), "two probes at once");
            probe.report(&down(), 1.0);
        }
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3200, 6400, 12800, 15000, 15000]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unused_probe_goes_to_the_next_queue() {
        let breaker = Breaker::new();
        breaker.permit().await.report(&down(), 1.0);
        let unused = breaker.permit().await;
        let (next, ()) = tokio::join!(breaker.permit(), async { drop(unused) });
        assert!(next.is_probe());
        next.report(&SinkHealth::Up, 0.0);
        assert!(breaker.is_closed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_failure_from_before_the_outage_does_not_count_again() {
        let breaker = Breaker::new();
        let (first, late) = (breaker.permit().await, breaker.permit().await);
        assert_eq!(first.report(&down(), 1.0), Change::Opened);
        assert_eq!(late.report(&down(), 1.0), Change::None);
        let began = Instant::now();
        assert!(breaker.permit().await.is_probe());
        assert_eq!(began.elapsed().as_millis(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wish_to_be_left_alone_is_a_floor() {
        let breaker = Breaker::new();
        let wish = SinkHealth::Down { error: "429".into(), retry_after: Some(Duration::from_secs(30)) };
        breaker.permit().await.report(&wish, 0.5);
        let began = Instant::now();
        assert!(breaker.permit().await.is_probe());
        assert_eq!(began.elapsed().as_secs(), 30);
    }
}
