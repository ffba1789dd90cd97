//! How the relay is doing, for `/livez` and `/readyz`.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

/// Progress and reachability, written by the relay's loops and read by whoever asks.
#[derive(Debug, Default)]
pub struct Health {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    loops: BTreeMap<String, Beat>,
    store: Option<Result<String, String>>,
    sinks: BTreeMap<String, SinkState>,
}

#[derive(Debug)]
struct Beat {
    last: Instant,
    allowance: Duration,
}

#[derive(Debug, Default)]
struct SinkState {
    /// Why the breaker is open.
    broken: Option<String>,
    checked: Option<Result<String, String>>,
}

/// How the relay was doing at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// Every loop that should make progress, by name.
    pub loops: BTreeMap<String, LoopHealth>,
    /// The database.
    pub store: ComponentHealth,
    /// The sinks, by name.
    pub sinks: BTreeMap<String, ComponentHealth>,
}

/// Whether a loop makes progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LoopHealth {
    /// It has made progress within its allowance.
    pub alive: bool,
    /// Seconds since it last did.
    pub idle_seconds: u64,
    /// Seconds that it may take.
    pub allowance_seconds: u64,
}

/// Whether something outside the relay can be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ComponentHealth {
    /// It could be used when it was last tried.
    pub up: bool,
    /// What was found, or what is wrong.
    pub detail: String,
}

impl Snapshot {
    /// Every loop makes progress: `/livez`.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.loops.values().all(|one| one.alive)
    }

    /// The store and every sink can be used: `/readyz`.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.store.up && self.sinks.values().all(|sink| sink.up)
    }
}

impl Health {
    /// How everything is doing now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let state = self.lock();
        let loops = state.loops.iter().map(|(name, beat)| (name.clone(), beat.health())).collect();
        let sinks = state.sinks.iter().map(|(name, sink)| (name.clone(), sink.health())).collect();
        Snapshot { loops, store: component(state.store.as_ref()), sinks }
    }

    /// A loop made progress, and will again within `allowance`.
    pub(crate) fn beat(&self, name: &str, allowance: Duration) {
        let beat = Beat { last: Instant::now(), allowance };
        let mut state = self.lock();
        match state.loops.get_mut(name) {
            Some(old) => *old = beat,
            None => {
                state.loops.insert(name.to_owned(), beat);
            }
        }
    }

    /// A loop has ended as it should.
    pub(crate) fn ended(&self, name: &str) {
        self.lock().loops.remove(name);
    }

    /// The store answered. True when it had not the last time.
    pub(crate) fn store_up(&self) -> bool {
        let mut state = self.lock();
        let was_down = matches!(state.store, Some(Err(_)));
        if !matches!(state.store, Some(Ok(_))) {
            state.store = Some(Ok("answers".to_owned()));
        }
        was_down
    }

    /// The store did not answer. True when it had the last time.
    pub(crate) fn store_down(&self, error: String) -> bool {
        let mut state = self.lock();
        let was_up = !matches!(state.store, Some(Err(_)));
        state.store = Some(Err(error));
        was_up
    }

    pub(crate) fn sink_breaker(&self, name: &str, broken: Option<String>) {
        self.lock().sinks.entry(name.to_owned()).or_default().broken = broken;
    }

    pub(crate) fn sink_checked(&self, name: &str, checked: Result<String, String>) {
        self.lock().sinks.entry(name.to_owned()).or_default().checked = Some(checked);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Beat {
    fn health(&self) -> LoopHealth {
        let idle = self.last.elapsed();
        LoopHealth {
            alive: idle <= self.allowance,
            idle_seconds: idle.as_secs(),
            allowance_seconds: self.allowance.as_secs(),
        }
    }
}

impl SinkState {
    fn health(&self) -> ComponentHealth {
        match &self.broken {
            Some(error) => ComponentHealth { up: false, detail: error.clone() },
            None => component(self.checked.as_ref()),
        }
    }
}

fn component(found: Option<&Result<String, String>>) -> ComponentHealth {
    match found {
        Some(Ok(detail)) => ComponentHealth { up: true, detail: detail.clone() },
        Some(Err(error)) => ComponentHealth { up: false, detail: error.clone() },
        None => ComponentHealth { up: false, detail: "not tried yet".to_owned() },
    }
}
