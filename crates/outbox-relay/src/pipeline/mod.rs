//! The relay: one loop a queue, the sweeper and the monitor, all supervised.

mod deliver;
mod idle;
mod monitor;
mod outage;
mod queue;
mod supervise;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_sinks::Sink;
use outbox_store::Store;
use outbox_sweeper::SweeperSettings;
use tokio_util::sync::CancellationToken;

use crate::breaker::Breaker;
use crate::health::Health;
use crate::route::DestinationTemplate;
use crate::settings::{Envelope, QueueSettings};

/// What a relay is made of.
pub struct RelayParts {
    /// Names the relay in logs; the store has its own copy for the claims.
    pub name: String,
    /// The database.
    pub store: Arc<dyn Store>,
    /// The queues to serve.
    pub queues: Vec<QueueSettings>,
    /// The sinks by the name that queues use.
    pub sinks: BTreeMap<String, SinkBinding>,
    /// When to sweep.
    pub sweeper: SweeperSettings,
    /// Most time from the signal to the end.
    pub shutdown_grace: Duration,
}

/// A sink and how events are put for it.
#[derive(Clone)]
pub struct SinkBinding {
    /// Where to deliver.
    pub sink: Arc<dyn Sink>,
    /// How an event becomes a message.
    pub envelope: Envelope,
}

/// How [`Relay::run_once`] ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Queues that still have due rows because their sink is down, with the sink's name.
    pub blocked: Vec<(String, String)>,
}

impl Drained {
    /// Nothing that is due is left.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.blocked.is_empty()
    }
}

/// A relay, ready to run.
pub struct Relay {
    shared: Arc<Shared>,
    queues: Vec<Arc<Queue>>,
    sweeper: SweeperSettings,
    shutdown_grace: Duration,
}

/// What all loops of a relay use.
struct Shared {
    name: String,
    store: Arc<dyn Store>,
    sinks: BTreeMap<String, Arc<BoundSink>>,
    health: Arc<Health>,
    /// Claim nothing more.
    stop: CancellationToken,
    /// Publishes that still run are given up: what is left of the grace is for settling.
    cut: CancellationToken,
}

/// A sink with its breaker.
struct BoundSink {
    name: String,
    sink: Arc<dyn Sink>,
    envelope: Envelope,
    breaker: Arc<Breaker>,
}

/// One queue with its sink and its compiled template.
struct Queue {
    settings: QueueSettings,
    template: Option<DestinationTemplate>,
    sink: Arc<BoundSink>,
}

impl Relay {
    /// Puts a relay together; connects to nothing.
    ///
    /// # Errors
    /// One line: a queue names a sink that is not there, or its template cannot be used.
    pub fn new(parts: RelayParts) -> Result<Self, String> {
        let bind = |(name, binding): (String, SinkBinding)| {
            let SinkBinding { sink, envelope } = binding;
            (name.clone(), Arc::new(BoundSink { name, sink, envelope, breaker: Breaker::new() }))
        };
        let sinks: BTreeMap<_, _> = parts.sinks.into_iter().map(bind).collect();
        let queues = parts
            .queues
            .into_iter()
            .map(|settings| Queue::new(settings, &sinks))
            .collect::<Result<_, _>>()?;
        let shared = Shared {
            name: parts.name,
            store: parts.store,
            sinks,
            health: Arc::new(Health::default()),
            stop: CancellationToken::new(),
            cut: CancellationToken::new(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            queues,
            sweeper: parts.sweeper,
            shutdown_grace: parts.shutdown_grace,
        })
    }

    /// How the relay is doing, also while it runs.
    #[must_use]
    pub fn health(&self) -> Arc<Health> {
        Arc::clone(&self.shared.health)
    }

    /// Delivers until `shutdown`, then settles or releases what it holds, within the grace period.
    ///
    /// A database or a sink that is down is waited for.
    ///
    /// # Errors
    /// The database is not as this binary needs it, a loop died, or the grace period was not enough.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        supervise::run(self, supervise::Mode::Forever, shutdown).await.map(|_| ())
    }

    /// Delivers what is due, waits for what is in flight, and ends.
    ///
    /// # Errors
    /// As for [`Relay::run`], and when the database cannot be reached.
    pub async fn run_once(self, shutdown: CancellationToken) -> anyhow::Result<Drained> {
        supervise::run(self, supervise::Mode::Once, shutdown).await
    }
}

impl Queue {
    fn new(settings: QueueSettings, sinks: &BTreeMap<String, Arc<BoundSink>>) -> Result<Arc<Self>, String> {
        let name = &settings.policy.name;
        let sink = sinks.get(&settings.sink).cloned().ok_or_else(|| {
            let known: Vec<_> = sinks.keys().map(String::as_str).collect();
            format!(
                "queues.{name}: sink \"{}\" is not defined; there are: {}",
                settings.sink,
                known.join(", ")
            )
        })?;
        let template = settings
            .destination
            .as_deref()
            .map(DestinationTemplate::parse)
            .transpose()
            .map_err(|error| format!("queues.{name}.destination: {error}"))?;
        Ok(Arc::new(Self { settings, template, sink }))
    }

    fn name(&self) -> &str {
        &self.settings.policy.name
    }
}
