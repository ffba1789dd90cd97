//! Which fault comes next: drawn from the seed, every kind once before any comes again.

use std::time::Duration;

use outbox_tests::proxy::Weather;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A relay is killed and started again.
    KillRelay,
    /// A relay is stopped until its leases are over and swept.
    StopRelay,
    /// A relay is killed and started with a clock that is so many seconds off.
    WrongClock(i32),
    /// The broker is killed and started again.
    KillBroker,
    /// Between relays and broker.
    BrokerLink(Weather),
    /// Between relays and database.
    StoreLink(Weather),
    /// The database server shuts down at once, as `pg_ctl stop -m immediate` does it, and recovers.
    StopStore,
    /// All processes of the database server are killed; it recovers.
    KillStore,
    /// Somebody reads for long: a checkpoint cannot pass.
    LongReader,
}

/// One fault of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Nothing happens for that long first.
    pub(crate) rest: Duration,
    pub(crate) fault: Fault,
    /// How long it lasts.
    pub(crate) lasts: Duration,
}

/// An endless, seeded sequence of faults.
pub(crate) struct Plan {
    faults: Vec<Fault>,
    left: Vec<Fault>,
    draws: StdRng,
}

impl Plan {
    /// The same seed and the same faults give the same plan.
    pub(crate) fn new(seed: u64, faults: Vec<Fault>) -> Self {
        Self { faults, left: Vec::new(), draws: StdRng::seed_from_u64(seed) }
    }

    /// How many steps it takes until each fault has come.
    pub(crate) fn round(&self) -> usize {
        self.faults.len()
    }

    pub(crate) fn next_step(&mut self) -> Step {
        if self.left.is_empty() {
            self.left.clone_from(&self.faults);
            self.left.shuffle(&mut self.draws);
        }
        let fault = self.left.pop().expect("a plan has faults");
        let mut between = |range: std::ops::Range<u64>| Duration::from_millis(self.draws.random_range(range));
        Step { rest: between(300..1200), fault, lasts: between(300..2000) }
    }
}

#[test]
fn a_seed_gives_one_plan_in_which_every_fault_comes() {
    let faults = vec![Fault::KillRelay, Fault::StopRelay, Fault::KillBroker];
    let steps = |seed| {
        let mut plan = Plan::new(seed, faults.clone());
        (0..30).map(|_| plan.next_step()).collect::<Vec<_>>()
    };
    assert_eq!(steps(1), steps(1));
    assert_ne!(steps(1), steps(2));
    for round in steps(1).chunks(faults.len()) {
        assert!(faults.iter().all(|fault| round.iter().any(|step| step.fault == *fault)), "{round:?}");
    }
}
