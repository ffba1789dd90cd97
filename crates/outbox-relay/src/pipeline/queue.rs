//! One queue's loop: claims while the sink can be used and no more than two batches are in flight.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use outbox_store::{Claim, Claimed, Claimer, StoreError};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tracing::trace;

use super::deliver::{Delivery, deliver};
use super::idle::{Idle, PAUSED, SHORTEST};
use super::outage::Outage;
use super::supervise::Mode;
use super::{Queue, Shared};
use crate::breaker::Permit;
use crate::metrics::QueueMetrics;

/// The next batch is claimed while the last one is published; memory is bounded by this many times `batch_bytes`.
const MAX_IN_FLIGHT: usize = 2;

/// Time between two signs of life while the sink is down.
const PERMIT_POLL: Duration = Duration::from_secs(5);

/// A claim and a settle may each take this long on top of what the queue's own times allow.
const STORE_ALLOWANCE: Duration = Duration::from_secs(60);

/// Store errors in a row after which a drain is given up.
const DRAIN_TRIES: u32 = 5;

/// Why a queue's loop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueEnd {
    /// The relay stops.
    Stopped,
    /// Nothing that is due is left.
    Drained,
    /// The sink is down.
    Blocked,
}

pub(super) struct QueueLoop {
    shared: Arc<Shared>,
    queue: Arc<Queue>,
    metrics: Arc<QueueMetrics>,
    claimer: Box<dyn Claimer>,
    in_flight: JoinSet<()>,
    idle: Idle,
    outage: Outage,
    mode: Mode,
}

impl QueueLoop {
    pub(super) fn new(shared: Arc<Shared>, queue: Arc<Queue>, mode: Mode) -> Self {
        let claimer = shared.store.claimer(Arc::clone(&queue.settings.policy));
        let metrics = Arc::new(QueueMetrics::new(queue.name(), &queue.sink.name));
        let (in_flight, idle, outage) = (JoinSet::new(), Idle::new(), Outage::default());
        Self { shared, queue, metrics, claimer, in_flight, idle, outage, mode }
    }

    /// Runs until the relay stops or, in a drain, until nothing that is due is left.
    pub(super) async fn run(mut self) -> anyhow::Result<QueueEnd> {
        let end = self.claim_and_deliver().await?;
        while self.join_one().await? {}
        self.shared.health.ended(&loop_name(self.queue.name()));
        Ok(end)
    }

    async fn claim_and_deliver(&mut self) -> anyhow::Result<QueueEnd> {
        loop {
            self.beat();
            self.reap()?;
            if self.shared.stop.is_cancelled() {
                return Ok(QueueEnd::Stopped);
            }
            if self.in_flight.len() >= MAX_IN_FLIGHT {
                self.join_one_or_stop().await?;
                continue;
            }
            if self.mode == Mode::Once && !self.queue.sink.breaker.is_closed() {
                if self.in_flight.is_empty() {
                    return Ok(QueueEnd::Blocked);
                }
                self.join_one_or_stop().await?;
                continue;
            }
            let Some(permit) = self.permit().await else { continue };
            let began = Instant::now();
            let claimed = self.claimer.claim().await;
            if let Some(end) = self.act(claimed, began.elapsed(), permit).await? {
                return Ok(end);
            }
        }
    }

    /// Acts on what a claim found; says so when the loop is to end.
    async fn act(
        &mut self,
        claimed: Result<Claimed, StoreError>,
        took: Duration,
        permit: Permit,
    ) -> anyhow::Result<Option<QueueEnd>> {
        if claimed.is_ok() {
            self.outage.over(&self.shared.health);
        }
        // A probe that is not used is given to other queues before this one waits.
        let permit = if matches!(claimed, Ok(Claimed::Rows(_))) { Some(permit) } else { None };
        match (claimed, permit) {
            (Ok(Claimed::Rows(claim)), Some(permit)) => {
                let began = Instant::now() - took;
                let rows = claim.events.len();
                self.start(claim, took, permit);
                let gathered = began + self.idle.found(began, rows, self.queue.settings.policy.batch);
                self.pause_until(gathered).await;
            }
            (Ok(Claimed::Rows(_)), None) => unreachable!("rows come with the permit they were claimed under"),
            (Ok(Claimed::Empty { next_due }), _) => {
                if self.mode == Mode::Once && next_due.is_none_or(|due| !due.is_zero()) {
                    return self.drained().await;
                }
                let pause = self.idle.empty(next_due);
                self.wait_for_rows(pause).await;
            }
            (Ok(Claimed::Busy), _) => {
                trace!(queue = self.queue.name(), "another claimer has the queue's lock");
                let pause = self.idle.busy();
                self.pause(pause).await;
            }
            (Ok(Claimed::Held), _) => self.wait_for_settle().await?,
            (Ok(Claimed::Paused), _) if self.mode == Mode::Once => return self.drained().await,
            (Ok(Claimed::Paused), _) => self.pause(PAUSED).await,
            (Err(error), _) => self.wait_for_store(error).await?,
        }
        Ok(None)
    }

    fn start(&mut self, claim: Claim, took: Duration, permit: Permit) {
        self.metrics.claimed(took, claim.events.iter().map(|event| claim.claimed_at - event.created_at));
        let delivery = Delivery {
            shared: Arc::clone(&self.shared),
            queue: Arc::clone(&self.queue),
            metrics: Arc::clone(&self.metrics),
            claim,
        };
        self.in_flight.spawn(deliver(delivery, permit));
    }

    /// Nothing is left to claim; what is in flight may yet put rows back.
    async fn drained(&mut self) -> anyhow::Result<Option<QueueEnd>> {
        if self.in_flight.is_empty() {
            return Ok(Some(QueueEnd::Drained));
        }
        self.join_one_or_stop().await?;
        Ok(None)
    }

    async fn permit(&mut self) -> Option<Permit> {
        tokio::select! {
            biased;
            () = self.shared.stop.cancelled() => None,
            permit = timeout(PERMIT_POLL, self.queue.sink.breaker.permit()) => permit.ok(),
        }
    }

    async fn wait_for_rows(&mut self, at_most: Duration) {
        let began = Instant::now();
        tokio::select! {
            () = self.shared.stop.cancelled() => return,
            () = self.claimer.wait(at_most) => {}
        }
        // A store that returns at once, again and again, does not make this a busy loop.
        self.pause_until(began + SHORTEST).await;
    }

    async fn wait_for_settle(&mut self) -> anyhow::Result<()> {
        if self.in_flight.is_empty() {
            let held = self.idle.held();
            self.pause(held).await;
            return Ok(());
        }
        let held = self.idle.held();
        tokio::select! {
            joined = self.in_flight.join_next() => self.check(joined),
            // Rows of other keys may have come meanwhile.
            () = sleep(held) => Ok(()),
        }
    }

    async fn wait_for_store(&mut self, error: StoreError) -> anyhow::Result<()> {
        let pause = self.outage.failed(&self.shared.health, self.queue.name(), "claiming", &error);
        if self.mode == Mode::Once && self.outage.failures() >= DRAIN_TRIES {
            return Err(error)
                .with_context(|| format!("queue {}: rows cannot be claimed", self.queue.name()));
        }
        self.pause(pause).await;
        Ok(())
    }

    async fn pause(&mut self, pause: Duration) {
        tokio::select! {
            () = self.shared.stop.cancelled() => {}
            () = sleep(pause) => {}
        }
    }

    /// Even a pause of nothing would last until the timer's next tick.
    async fn pause_until(&mut self, end: Instant) {
        let rest = end.saturating_duration_since(Instant::now());
        if !rest.is_zero() {
            self.pause(rest).await;
        }
    }

    async fn join_one_or_stop(&mut self) -> anyhow::Result<()> {
        tokio::select! {
            joined = self.in_flight.join_next() => self.check(joined),
            () = self.shared.stop.cancelled() => Ok(()),
        }
    }

    async fn join_one(&mut self) -> anyhow::Result<bool> {
        let joined = self.in_flight.join_next().await;
        let is_some = joined.is_some();
        self.check(joined).map(|()| is_some)
    }

    fn reap(&mut self) -> anyhow::Result<()> {
        while let Some(joined) = self.in_flight.try_join_next() {
            self.check(Some(joined))?;
        }
        Ok(())
    }

    /// A delivery that died takes the loop with it, and the loop the relay.
    fn check(&self, joined: Option<Result<(), tokio::task::JoinError>>) -> anyhow::Result<()> {
        match joined {
            Some(Err(error)) => {
                Err(error).with_context(|| format!("queue {}: a delivery died", self.queue.name()))
            }
            _ => Ok(()),
        }
    }

    fn beat(&self) {
        let allowance = self.queue.settings.policy.lease + STORE_ALLOWANCE;
        self.shared.health.beat(&loop_name(self.queue.name()), allowance);
    }
}

pub(super) fn loop_name(queue: &str) -> String {
    format!("queue {queue}")
}
