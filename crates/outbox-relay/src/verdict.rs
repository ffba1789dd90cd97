//! What an answer costs: the one place where the failure policy is decided, for all sinks and all queues.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use outbox_sinks::{Answer, Cause, Refusal};
use outbox_store::{Event, OnFailed, Ordering, QueuePolicy, Verdict};

use crate::breaker::SinkHealth;
use crate::settings::Backoff;

/// No delay is longer, whatever a configuration or a sink asks for: a database can still add it to a date.
const LONGEST_DELAY: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Longest text kept in `last_error` and `receipt`, in bytes.
const TEXT_BYTES: usize = 1000;

/// What became of one claimed event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It cannot be made into a message; it was not sent.
    Invalid(String),
    /// It stands behind a row of its key that failed, or there was no time: it was not sent.
    NotSent,
    /// The sink's answer.
    Answered(Answer),
}

/// What the decision depends on besides events and outcomes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances<'a> {
    pub(crate) policy: &'a QueuePolicy,
    pub(crate) retry: &'a Backoff,
    /// The batch was the one that tries an open breaker.
    pub(crate) probe: bool,
}

/// What is to become of a batch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Decision {
    /// One for each event, in the batch's order.
    pub(crate) verdicts: Vec<Verdict>,
    /// What the batch showed of its sink.
    pub(crate) sink: SinkHealth,
}

/// Decides for a whole batch. `random` draws from 0 to 1.
pub(crate) fn decide(
    events: &[Event],
    outcomes: &[Outcome],
    circumstances: &Circumstances<'_>,
    mut random: impl FnMut() -> f64,
) -> Decision {
    debug_assert_eq!(events.len(), outcomes.len());
    let ordered = circumstances.policy.ordering == Ordering::Key;
    let sink = sink_health(outcomes);
    let hold_the_only_key = circumstances.probe && silent_alone(events, outcomes, circumstances.policy);
    let mut stopped: HashSet<(&str, &str)> = HashSet::new();
    let mut verdicts = Vec::with_capacity(events.len());
    for (event, outcome) in events.iter().zip(outcomes) {
        let key = (event.aggregate_type.as_str(), event.aggregate_id.as_str());
        let behind = ordered && stopped.contains(&key);
        let verdict = match outcome {
            Outcome::Answered(Answer::Acked { receipt }) => {
                Verdict::Published { receipt: receipt.as_deref().map(clean) }
            }
            _ if behind => Verdict::Release,
            Outcome::NotSent | Outcome::Answered(Answer::Unsent) => Verdict::Release,
            Outcome::Invalid(error) => Verdict::Failed { error: clean(error) },
            Outcome::Answered(Answer::Refused(refusal)) => {
                refused(event, refusal, circumstances, hold_the_only_key, random())
            }
        };
        if ordered && stops_its_key(outcome, circumstances.policy) && !behind {
            stopped.insert(key);
        }
        verdicts.push(verdict);
    }
    Decision { verdicts, sink }
}

/// Whether the rest of the key must wait. What cannot be sent at all holds nobody up where FAILED rows are skipped.
fn stops_its_key(outcome: &Outcome, policy: &QueuePolicy) -> bool {
    match outcome {
        Outcome::Answered(Answer::Acked { .. }) => false,
        Outcome::Invalid(_) => policy.on_failed == OnFailed::Block,
        Outcome::NotSent | Outcome::Answered(_) => true,
    }
}

fn refused(
    event: &Event,
    refusal: &Refusal,
    circumstances: &Circumstances<'_>,
    hold_the_only_key: bool,
    random: f64,
) -> Verdict {
    let error = clean(&refusal.error);
    let backoff = circumstances.retry;
    let floor = refusal.retry_after.unwrap_or_default();
    match refusal.cause {
        Cause::Message => Verdict::Failed { error },
        Cause::Unclear => {
            let allowed = event.max_retries.unwrap_or(circumstances.policy.max_retries);
            if event.retry_count >= allowed {
                return Verdict::Failed { error };
            }
            Verdict::Retry { after: delay(backoff, event.retry_count, random, floor), error }
        }
        Cause::Destination => Verdict::Hold { after: delay(backoff, 0, random, floor), error },
        Cause::Sink if hold_the_only_key => Verdict::Hold { after: delay(backoff, 0, random, floor), error },
        Cause::Sink => Verdict::Release,
    }
}

/// `initial * factor^retry_count`, at most `max`, spread by ± jitter, at least `floor`.
fn delay(backoff: &Backoff, retry_count: u32, random: f64, floor: Duration) -> Duration {
    let longest = backoff.max.min(LONGEST_DELAY).as_secs_f64();
    let grown = backoff.initial.as_secs_f64() * backoff.factor.powf(f64::from(retry_count));
    // 0 * infinity and a nonsensical factor are not numbers.
    let base = if grown.is_nan() { longest } else { grown.clamp(0.0, longest) };
    let spread = 1.0 + backoff.jitter.clamp(0.0, 1.0) * (random.clamp(0.0, 1.0) * 2.0 - 1.0);
    let spread = if spread.is_nan() { 1.0 } else { spread };
    let delay = Duration::try_from_secs_f64(base * spread).unwrap_or(LONGEST_DELAY);
    delay.max(floor).min(LONGEST_DELAY)
}

/// Any blame on the sink counts, whatever else was acknowledged; else any answer shows that it is there.
fn sink_health(outcomes: &[Outcome]) -> SinkHealth {
    let mut health = SinkHealth::Unknown;
    for outcome in outcomes {
        let Outcome::Answered(answer) = outcome else { continue };
        match answer {
            Answer::Unsent => {}
            Answer::Refused(Refusal { cause: Cause::Sink, error, retry_after, .. }) => {
                health = match health {
                    SinkHealth::Down { error, retry_after: earlier } => {
                        SinkHealth::Down { error, retry_after: earlier.max(*retry_after) }
                    }
                    _ => SinkHealth::Down { error: clean(error), retry_after: *retry_after },
                };
            }
            Answer::Acked { .. } | Answer::Refused(_) if health == SinkHealth::Unknown => {
                health = SinkHealth::Up;
            }
            Answer::Acked { .. } | Answer::Refused(_) => {}
        }
    }
    health
}

/// The batch was full and all of one key, and the sink kept silent about it: whether sink or key is to blame shows
/// only when other keys are tried, so this one must make room. A batch that was not full had nobody else to try.
fn silent_alone(events: &[Event], outcomes: &[Outcome], policy: &QueuePolicy) -> bool {
    let silent = |outcome: &Outcome| {
        matches!(
            outcome,
            Outcome::Answered(Answer::Refused(Refusal { cause: Cause::Sink, silent: true, .. }))
        )
    };
    is_full(events, policy) && keys(events, policy.ordering) == 1 && outcomes.iter().any(silent)
}

/// Whether the limits of the claim, and not the end of what was ready, may have ended the batch: rows that were in a
/// lost claim weigh 8 times as much for each loss.
fn is_full(events: &[Event], policy: &QueuePolicy) -> bool {
    let weight: u64 =
        events.iter().map(|event| 8_u64.saturating_pow(event.lost_count)).fold(0, u64::saturating_add);
    let bytes: u64 = events.iter().map(|event| event.payload.len() as u64).sum();
    weight >= u64::from(policy.batch) || bytes.saturating_mul(2) >= policy.batch_bytes
}

fn keys(events: &[Event], ordering: Ordering) -> usize {
    if ordering == Ordering::None {
        return events.len();
    }
    let keys: HashMap<_, _> =
        events.iter().map(|event| ((&event.aggregate_type, &event.aggregate_id), ())).collect();
    keys.len()
}

/// A database takes no NUL, and nobody reads a page of error.
fn clean(text: &str) -> String {
    let mut end = text.len().min(TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].replace('\0', " ")
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
