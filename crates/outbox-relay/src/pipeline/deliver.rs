//! One batch from claim to settle.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use outbox_sinks::{Answer, Cause, Message, Refusal};
use outbox_store::{Claim, Event, OnFailed, Ordering, Settled, StoreError, Verdict};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, error, info, warn};

use super::{Queue, Shared};
use crate::breaker::{Change, Permit, SinkHealth};
use crate::encode::encode;
use crate::metrics::{self, QueueMetrics};
use crate::verdict::{Circumstances, Outcome, decide};

/// Longest time that a sink gets beyond its deadline to say so itself.
const LONGEST_SLACK: Duration = Duration::from_secs(1);

/// Pauses between two tries to settle.
const FIRST_SETTLE_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_SETTLE_PAUSE: Duration = Duration::from_secs(2);

/// A claim and what it takes to deliver it.
pub(super) struct Delivery {
    pub(super) shared: Arc<Shared>,
    pub(super) queue: Arc<Queue>,
    pub(super) metrics: Arc<QueueMetrics>,
    pub(super) claim: Claim,
}

/// Publishes a claim and settles each of its rows.
pub(super) async fn deliver(delivery: Delivery, permit: Permit) {
    let outcomes = delivery.publish().await;
    let settings = &delivery.queue.settings;
    let circumstances =
        Circumstances { policy: &settings.policy, retry: &settings.retry, probe: permit.is_probe() };
    let decision = decide(&delivery.claim.events, &outcomes, &circumstances, rand::random);
    delivery.count_answers(&outcomes);
    delivery.report(permit, &decision.sink);
    if delivery.settle(&decision.verdicts).await {
        delivery.record(&outcomes, &decision.verdicts);
    }
}

/// What of a claim can be sent, and what became of the rest.
struct Prepared<'a> {
    messages: Vec<Message<'a>>,
    /// Where each message stands in the claim.
    positions: Vec<usize>,
    outcomes: Vec<Outcome>,
}

impl Delivery {
    async fn publish(&self) -> Vec<Outcome> {
        let Prepared { messages, positions, mut outcomes } = prepare(&self.queue, &self.claim.events);
        let deadline = Instant::from_std(self.claim.sent_at) + self.queue.settings.publish_timeout;
        // A claim that came after the signal, or too late, goes back as it is.
        if messages.is_empty() || self.shared.stop.is_cancelled() || Instant::now() >= deadline {
            return outcomes;
        }
        let answers = self.send(&messages, deadline).await;
        for (position, answer) in positions.into_iter().zip(answers) {
            outcomes[position] = Outcome::Answered(answer);
        }
        outcomes
    }

    /// The sink keeps its own deadline; one that does not is cut off soon after, and its silence is its fault.
    async fn send(&self, messages: &[Message<'_>], deadline: Instant) -> Vec<Answer> {
        let sink = &self.queue.sink;
        let slack = (self.queue.settings.settle_margin() / 4).min(LONGEST_SLACK);
        let mut answers = tokio::select! {
            biased;
            answers = sink.sink.publish(messages, deadline) => answers,
            () = self.shared.cut.cancelled() => vec![Answer::Unsent; messages.len()],
            () = sleep_until(deadline + slack) => vec![Answer::silence(Cause::Sink); messages.len()],
        };
        if answers.len() != messages.len() {
            error!(
                sink = sink.name,
                kind = sink.sink.kind(),
                messages = messages.len(),
                answers = answers.len(),
                "the sink did not answer for each message; what is missing counts as silence"
            );
            answers.resize(messages.len(), Answer::silence(Cause::Sink));
        }
        answers
    }

    /// The database's clock, as far as it can be told from here.
    fn database_now(&self) -> time::OffsetDateTime {
        self.claim.claimed_at + self.claim.sent_at.elapsed()
    }

    fn count_answers(&self, outcomes: &[Outcome]) {
        let now = self.database_now();
        for (event, outcome) in self.claim.events.iter().zip(outcomes) {
            match outcome {
                Outcome::Answered(Answer::Acked { .. }) => self.metrics.acked(now - event.created_at),
                Outcome::Answered(Answer::Refused(refusal)) => {
                    self.metrics.publish_error(refusal.cause.as_str());
                }
                Outcome::Invalid(_) => self.metrics.publish_error(Cause::Message.as_str()),
                Outcome::NotSent | Outcome::Answered(Answer::Unsent) => {}
            }
        }
    }

    fn report(&self, permit: Permit, health: &SinkHealth) {
        let sink = self.queue.sink.name.as_str();
        let change = permit.report(health, rand::random());
        match (change, health) {
            (Change::Opened, SinkHealth::Down { error, .. }) => {
                warn!(
                    sink,
                    queue = self.queue.name(),
                    error,
                    "the sink is down; its queues wait while it is probed"
                );
                self.shared.health.sink_breaker(sink, Some(error.clone()));
                metrics::sink_up(sink, false);
            }
            (Change::Closed, _) => {
                info!(sink, "the sink is back");
                self.shared.health.sink_breaker(sink, None);
                metrics::sink_up(sink, true);
            }
            (_, SinkHealth::Down { error, .. }) => {
                debug!(sink, queue = self.queue.name(), error, "the sink is still down");
            }
            _ => {}
        }
    }

    /// Settles, again and again while the lease lasts: a settle is fenced, so a second one is safe. True when every
    /// row has its verdict.
    async fn settle(&self, verdicts: &[Verdict]) -> bool {
        let policy = &self.queue.settings.policy;
        let lease_ends = Instant::from_std(self.claim.sent_at) + policy.lease;
        let mut pause = FIRST_SETTLE_PAUSE;
        let mut unanswered = false;
        loop {
            let began = Instant::now();
            let error = match self.shared.store.settle(policy, &self.claim, verdicts).await {
                Ok(Settled::Done) => {
                    self.metrics.settled(began.elapsed());
                    return true;
                }
                Ok(Settled::LeaseLost) => {
                    self.lease_lost(unanswered);
                    return unanswered;
                }
                Err(error) => error,
            };
            unanswered |= matches!(error, StoreError::Unavailable(_));
            if !matches!(error, StoreError::Unavailable(_) | StoreError::Conflict(_)) {
                error!(queue = policy.name, rows = verdicts.len(), %error, "a batch cannot be settled; the sweep takes it");
                return false;
            }
            let wait = pause.mul_f64(rand::random_range(0.5..1.0));
            if Instant::now() + wait >= lease_ends {
                warn!(queue = policy.name, rows = verdicts.len(), %error, "a batch was not settled in its lease; the sweep takes it");
                return false;
            }
            debug!(queue = policy.name, %error, "a settle is tried again");
            sleep(wait).await;
            pause = (pause * 2).min(LONGEST_SETTLE_PAUSE);
        }
    }

    /// After a settle without an answer a missing claim most likely means that the settle had happened.
    fn lease_lost(&self, unanswered: bool) {
        let queue = self.queue.name();
        if unanswered {
            debug!(queue, "the claim is gone after a settle whose answer was lost");
            return;
        }
        self.metrics.lease_lost.increment(1);
        let events = &self.claim.events;
        let attempts = events.iter().map(|event| event.retry_count).max().unwrap_or_default() + 1;
        warn!(
            queue,
            rows = events.len(),
            event_types = event_types(events),
            attempts,
            "the lease ran out before the batch was settled; another owner has its rows, and nothing was changed"
        );
    }

    /// Counts and says what the settle made true.
    fn record(&self, outcomes: &[Outcome], verdicts: &[Verdict]) {
        let queue = self.queue.name();
        let (mut published, mut retried, mut held) = (0, Vec::new(), Vec::new());
        for ((event, outcome), verdict) in self.claim.events.iter().zip(outcomes).zip(verdicts) {
            match verdict {
                Verdict::Published { .. } => published += 1,
                Verdict::Retry { error, .. } => retried.push((event, error)),
                Verdict::Hold { error, .. } => held.push((event, error)),
                Verdict::Failed { error } => log_failed(queue, event, outcome, error),
                Verdict::Release => {}
            }
        }
        self.metrics.published.increment(published);
        self.metrics.retries.increment(retried.len() as u64);
        self.metrics.held.increment(held.len() as u64);
        if let Some((event, error)) = retried.first() {
            let (id, attempts) = (event.id, event.retry_count + 1);
            info!(queue, events = retried.len(), first = %id, attempts, error, "events were not accepted and will be tried again");
        }
        if let Some((event, error)) = held.first() {
            let id = event.id;
            warn!(queue, events = held.len(), first = %id, error, "events are held: their destination cannot be used");
        }
    }
}

fn prepare<'a>(queue: &'a Queue, events: &'a [Event]) -> Prepared<'a> {
    let policy = &queue.settings.policy;
    let blocks = policy.ordering == Ordering::Key && policy.on_failed == OnFailed::Block;
    let mut blocked: HashSet<(&str, &str)> = HashSet::new();
    let mut prepared = Prepared {
        messages: Vec::with_capacity(events.len()),
        positions: Vec::with_capacity(events.len()),
        outcomes: vec![Outcome::NotSent; events.len()],
    };
    for (position, event) in events.iter().enumerate() {
        let key = (event.aggregate_type.as_str(), event.aggregate_id.as_str());
        if blocks && blocked.contains(&key) {
            continue;
        }
        match message(queue, event) {
            Ok(message) => {
                prepared.messages.push(message);
                prepared.positions.push(position);
            }
            Err(error) => {
                blocked.insert(key);
                prepared.outcomes[position] = Outcome::Invalid(error);
            }
        }
    }
    prepared
}

fn message<'a>(queue: &'a Queue, event: &'a Event) -> Result<Message<'a>, String> {
    let destination = queue.destination(event)?;
    let encoded = encode(queue.sink.envelope, queue.name(), event)?;
    Ok(Message { event, queue: queue.name(), destination, headers: encoded.headers, body: encoded.body })
}

impl Queue {
    /// The row's own destination, else the queue's template.
    fn destination<'a>(&self, event: &'a Event) -> Result<Option<std::borrow::Cow<'a, str>>, String> {
        let needed = self.sink.sink.needs_destination();
        if let Some(own) = event.destination.as_deref().filter(|own| !own.is_empty()) {
            return Ok(Some(own.into()));
        }
        let rendered = self.template.as_ref().map(|template| template.render(self.name(), event));
        match rendered {
            Some(Ok(destination)) => Ok(Some(destination.into())),
            Some(Err(error)) if needed => Err(format!("destination: {error}")),
            None if needed => Err(format!(
                "no destination: set `destination` under [queues.{}], or the row's destination column",
                self.name()
            )),
            _ => Ok(None),
        }
    }
}

fn log_failed(queue: &str, event: &Event, outcome: &Outcome, error: &str) {
    let cause = match outcome {
        Outcome::Answered(Answer::Refused(Refusal { cause, .. })) => cause.as_str(),
        _ => Cause::Message.as_str(),
    };
    let event_type = event.event_type.as_deref().unwrap_or_default();
    warn!(queue, id = %event.id, event_type, attempts = event.retry_count + 1, cause, error, "an event FAILED");
}

/// Each event type once, the first few of them.
fn event_types(events: &[Event]) -> String {
    let mut types: Vec<&str> = events.iter().filter_map(|event| event.event_type.as_deref()).collect();
    types.sort_unstable();
    types.dedup();
    types.truncate(5);
    types.join(", ")
}
