//! Helpers for sinks that send message by message.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

use crate::{Answer, Cause, Message, Refusal};

/// Sends a batch with at most one message of a key in flight and at most `concurrency` in all.
///
/// The deadline is looked at before each send; a send without an answer at the deadline is dropped and becomes
/// silence, so `send` must leave nothing queued when its future is dropped. After a message that was not acknowledged
/// the rest of its key is [`Answer::Unsent`]. Two messages go to the same place when their destinations are the same.
pub async fn publish_keyed<'m, F, Fut>(
    batch: &'m [Message<'m>],
    deadline: Instant,
    concurrency: usize,
    send: F,
) -> Vec<Answer>
where
    F: Fn(&'m Message<'m>) -> Fut,
    Fut: Future<Output = Answer>,
{
    let place = |message: &'m Message<'m>| message.destination.as_deref();
    publish_keyed_to(batch, deadline, concurrency, place, send).await
}

/// The same, where `place` says which messages go to the same place.
///
/// A refusal that is both silent and unclear is judged like silence, its text kept: it stays unclear only when a later
/// send to the same place was acknowledged, and is the sink's fault otherwise.
pub async fn publish_keyed_to<'m, P, F, Fut>(
    batch: &'m [Message<'m>],
    deadline: Instant,
    concurrency: usize,
    place: impl Fn(&'m Message<'m>) -> P,
    send: F,
) -> Vec<Answer>
where
    P: Eq + Hash,
    F: Fn(&'m Message<'m>) -> Fut,
    Fut: Future<Output = Answer>,
{
    let clock = AtomicU64::new(0);
    let mut waiting = runs_by_key(batch).into_iter();
    let mut running: FuturesUnordered<_> = waiting
        .by_ref()
        .take(concurrency.max(1))
        .map(|run| send_run(batch, run, deadline, &clock, &send))
        .collect();
    let mut fates: Vec<Fate> = batch.iter().map(|_| Fate::Unsent).collect();
    while let Some(sent) = running.next().await {
        for (index, fate) in sent {
            fates[index] = fate;
        }
        if let Some(run) = waiting.next() {
            running.push(send_run(batch, run, deadline, &clock, &send));
        }
    }
    let places = batch.iter().map(place).collect();
    answers(places, fates)
}

/// Whose fault silence is, given when the message was sent and when the last acknowledged one to the same place was.
#[must_use]
pub fn silence_cause(sent: u64, last_acked_at_same_place: Option<u64>) -> Cause {
    match last_acked_at_same_place {
        Some(acked) if acked > sent => Cause::Unclear,
        _ => Cause::Sink,
    }
}

enum Fate {
    Unsent,
    Answered {
        sent: u64,
        answer: Answer,
    },
    /// Whose fault it is shows only in what became of the others.
    Silent {
        sent: u64,
        refusal: Refusal,
    },
}

/// Indices into the batch, one list a key, in the batch's order; lists in the order of their first message.
fn runs_by_key(batch: &[Message<'_>]) -> Vec<Vec<usize>> {
    let mut places: HashMap<(&str, &str), usize> = HashMap::new();
    let mut runs: Vec<Vec<usize>> = Vec::new();
    for (index, message) in batch.iter().enumerate() {
        let key = (message.event.aggregate_type.as_str(), message.event.aggregate_id.as_str());
        let run = *places.entry(key).or_insert_with(|| {
            runs.push(Vec::new());
            runs.len() - 1
        });
        runs[run].push(index);
    }
    runs
}

async fn send_run<'m, F, Fut>(
    batch: &'m [Message<'m>],
    run: Vec<usize>,
    deadline: Instant,
    clock: &AtomicU64,
    send: &F,
) -> Vec<(usize, Fate)>
where
    F: Fn(&'m Message<'m>) -> Fut,
    Fut: Future<Output = Answer>,
{
    let mut fates = Vec::with_capacity(run.len());
    for index in run {
        if Instant::now() >= deadline {
            break;
        }
        let sent = clock.fetch_add(1, Ordering::Relaxed);
        let fate = match timeout_at(deadline, send(&batch[index])).await {
            Ok(Answer::Refused(refusal)) if refusal.silent && refusal.cause == Cause::Unclear => {
                Fate::Silent { sent, refusal }
            }
            Ok(answer) => Fate::Answered { sent, answer },
            Err(_) => Fate::Silent { sent, refusal: Refusal::silence(Cause::Unclear) },
        };
        let acked = matches!(&fate, Fate::Answered { answer: Answer::Acked { .. }, .. });
        fates.push((index, fate));
        if !acked {
            break;
        }
    }
    fates
}

fn answers<P: Eq + Hash>(places: Vec<P>, fates: Vec<Fate>) -> Vec<Answer> {
    let mut last_acked: HashMap<&P, u64> = HashMap::new();
    for (place, fate) in places.iter().zip(&fates) {
        if let Fate::Answered { sent, answer: Answer::Acked { .. } } = fate {
            let last = last_acked.entry(place).or_default();
            *last = (*last).max(*sent);
        }
    }
    let answer = |(place, fate): (&P, Fate)| match fate {
        Fate::Unsent => Answer::Unsent,
        Fate::Answered { answer, .. } => answer,
        Fate::Silent { sent, refusal } => {
            let cause = silence_cause(sent, last_acked.get(place).copied());
            Answer::Refused(Refusal { cause, ..refusal })
        }
    };
    places.iter().zip(fates).map(answer).collect()
}
