//! Starts every loop, takes the relay down when one dies, and ends them all in time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use outbox_store::StoreError;
use outbox_sweeper::Sweeper;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::outage::Outage;
use super::queue::{QueueEnd, QueueLoop, loop_name};
use super::{Drained, Relay, Shared, monitor};
use crate::metrics;

/// Longest part of the grace period kept for settling.
const LONGEST_SETTLE_RESERVE: Duration = Duration::from_secs(2);

/// Most time for a sink to let go of its connections.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Tries to reach the database in a drain.
const DRAIN_TRIES: u32 = 5;

const SWEEPER: &str = "sweeper";

/// How long a relay runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Forever,
    Once,
}

/// How a task ended.
enum TaskEnd {
    Queue { queue: String, sink: String, end: QueueEnd },
    Service,
}

struct Tasks {
    set: JoinSet<anyhow::Result<TaskEnd>>,
    names: HashMap<Id, String>,
    queues_left: usize,
    drained: Drained,
}

pub(super) async fn run(relay: Relay, mode: Mode, shutdown: CancellationToken) -> anyhow::Result<Drained> {
    metrics::describe();
    for name in relay.shared.sinks.keys() {
        metrics::sink_up(name, true);
        relay.shared.health.sink_breaker(name, None);
    }
    if !register(&relay, mode, &shutdown).await? {
        return Ok(Drained::default());
    }
    let mut tasks = Tasks::start(&relay, mode);
    info!(relay = relay.shared.name, queues = relay.queues.len(), "the relay runs");
    let result = tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        result = tasks.watch(mode) => result,
    };
    let ended = tasks.wind_down(&relay.shared, relay.shutdown_grace).await;
    for sink in relay.shared.sinks.values() {
        if timeout(CLOSE_TIMEOUT, sink.sink.close()).await.is_err() {
            warn!(sink = sink.name, "the sink did not close in time");
        }
    }
    result.and(ended)?;
    info!(relay = relay.shared.name, "the relay has ended; it holds nothing");
    Ok(tasks.drained)
}

/// Makes the queues known; waits for a database that does not answer. False when the relay is to stop.
async fn register(relay: &Relay, mode: Mode, shutdown: &CancellationToken) -> anyhow::Result<bool> {
    let queues: Vec<&str> = relay.queues.iter().map(|queue| queue.name()).collect();
    let mut outage = Outage::default();
    loop {
        let error = match relay.shared.store.register_queues(&queues).await {
            Ok(()) => break,
            Err(error) => error,
        };
        let pause = outage.failed(&relay.shared.health, "", "registering queues", &error);
        let waits = matches!(error, StoreError::Unavailable(_) | StoreError::Conflict(_));
        if !waits || (mode == Mode::Once && outage.failures() >= DRAIN_TRIES) {
            return Err(error.into());
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(false),
            () = sleep(pause) => {}
        }
    }
    outage.over(&relay.shared.health);
    Ok(true)
}

impl Tasks {
    fn start(relay: &Relay, mode: Mode) -> Self {
        let mut tasks = Self {
            set: JoinSet::new(),
            names: HashMap::new(),
            queues_left: relay.queues.len(),
            drained: Drained::default(),
        };
        for queue in &relay.queues {
            let (name, sink) = (queue.name().to_owned(), queue.sink.name.clone());
            let queue_loop = QueueLoop::new(Arc::clone(&relay.shared), Arc::clone(queue), mode);
            tasks.spawn(loop_name(&name), async move {
                let end = queue_loop.run().await?;
                Ok(TaskEnd::Queue { queue: name, sink, end })
            });
        }
        let served = relay.queues.iter().map(|queue| queue.name().to_owned()).collect();
        let shared = Arc::clone(&relay.shared);
        tasks.spawn(monitor::NAME.to_owned(), async move {
            monitor::run(shared, served).await;
            Ok(TaskEnd::Service)
        });
        tasks.spawn(SWEEPER.to_owned(), sweep(relay));
        tasks
    }

    fn spawn(&mut self, name: String, task: impl Future<Output = anyhow::Result<TaskEnd>> + Send + 'static) {
        let handle = self.set.spawn(task);
        self.names.insert(handle.id(), name);
    }

    /// Returns when a drain has emptied every queue, or with the first death.
    async fn watch(&mut self, mode: Mode) -> anyhow::Result<()> {
        while mode == Mode::Forever || self.queues_left > 0 {
            let Some(joined) = self.set.join_next_with_id().await else { break };
            let end = self.note(joined)?;
            if mode == Mode::Forever || matches!(end, TaskEnd::Service) {
                bail!("a loop ended that never should");
            }
        }
        Ok(())
    }

    /// Takes note of a task's end; an error names the task that died.
    fn note(&mut self, joined: Result<(Id, anyhow::Result<TaskEnd>), JoinError>) -> anyhow::Result<TaskEnd> {
        let (id, result) = match joined {
            Ok((id, result)) => (id, result),
            Err(error) => (error.id(), Err(anyhow!("{error}"))),
        };
        let name = self.names.remove(&id).unwrap_or_default();
        let end = result.map_err(|error| error.context(format!("{name} died")))?;
        debug!(name, "ended");
        if let TaskEnd::Queue { queue, sink, end } = &end {
            self.queues_left -= 1;
            if *end == QueueEnd::Blocked {
                self.drained.blocked.push((queue.clone(), sink.clone()));
            }
        }
        Ok(end)
    }

    /// No more claims; publishes go on until only the time to settle is left of the grace period.
    async fn wind_down(&mut self, shared: &Shared, grace: Duration) -> anyhow::Result<()> {
        shared.stop.cancel();
        let ends = Instant::now() + grace;
        let cut_at = ends - (grace / 4).min(LONGEST_SETTLE_RESERVE);
        let mut result = Ok(());
        while !self.set.is_empty() {
            tokio::select! {
                joined = self.set.join_next_with_id() => {
                    let Some(joined) = joined else { break };
                    result = result.and(self.note(joined).map(|_| ()));
                }
                () = sleep_until(cut_at), if !shared.cut.is_cancelled() => shared.cut.cancel(),
                () = sleep_until(ends) => {
                    let mut left: Vec<_> = self.names.values().map(String::as_str).collect();
                    left.sort_unstable();
                    let left = left.join(", ");
                    self.set.shutdown().await;
                    bail!("not ended within the grace period of {grace:?}: {left}; what it held is left to the lease");
                }
            }
        }
        result
    }
}

fn sweep(relay: &Relay) -> impl Future<Output = anyhow::Result<TaskEnd>> + Send + 'static {
    let shared = Arc::clone(&relay.shared);
    let policies = relay.queues.iter().map(|queue| Arc::clone(&queue.settings.policy)).collect();
    let allowance = relay.sweeper.interval * 2 + Duration::from_secs(10 * 60);
    let sweeper = Sweeper::new(Arc::clone(&shared.store), policies, relay.sweeper.clone());
    async move {
        shared.health.beat(SWEEPER, allowance);
        let stop = shared.stop.clone();
        sweeper.run(stop, |_| shared.health.beat(SWEEPER, allowance)).await;
        Ok(TaskEnd::Service)
    }
}
