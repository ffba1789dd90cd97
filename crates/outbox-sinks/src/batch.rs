//! Helpers for sinks that send message by message.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

use crate::{Answer, Cause, Message};

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
    answers(batch, fates)
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
    Answered { sent: u64, answer: Answer },
    Silent { sent: u64 },
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
            Ok(answer) => Fate::Answered { sent, answer },
            Err(_) => Fate::Silent { sent },
        };
        let acked = matches!(&fate, Fate::Answered { answer: Answer::Acked { .. }, .. });
        fates.push((index, fate));
        if !acked {
            break;
        }
    }
    fates
}

fn answers(batch: &[Message<'_>], fates: Vec<Fate>) -> Vec<Answer> {
    let mut last_acked: HashMap<Option<&str>, u64> = HashMap::new();
    for (message, fate) in batch.iter().zip(&fates) {
        if let Fate::Answered { sent, answer: Answer::Acked { .. } } = fate {
            let last = last_acked.entry(message.destination.as_deref()).or_default();
            *last = (*last).max(*sent);
        }
    }
    let answer = |(message, fate): (&Message<'_>, Fate)| match fate {
        Fate::Unsent => Answer::Unsent,
        Fate::Answered { answer, .. } => answer,
        Fate::Silent { sent } => {
            let last = last_acked.get(&message.destination.as_deref()).copied();
            Answer::silence(silence_cause(sent, last))
        }
    };
    batch.iter().zip(fates).map(answer).collect()
}
