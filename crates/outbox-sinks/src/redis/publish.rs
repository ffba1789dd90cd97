//! A batch on its connection, and what became of each of its messages.

use std::collections::HashMap;
use std::time::Duration;

use ::redis::{RedisError, Value, cmd, pipe};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};

use super::connection::{Lease, describe};
use super::entry::{self, Trim};
use super::refusal;
use crate::{Answer, Cause, Message};

/// Most entries of one transaction: the server does nothing else meanwhile.
const SEGMENT_ENTRIES: usize = 128;

/// The same in bytes, about; a single entry may be larger.
const SEGMENT_BYTES: usize = 1 << 20;

/// How one batch is to be added.
pub(super) struct Adding<'a> {
    pub(super) lease: &'a Lease<'a>,
    pub(super) trim: Option<Trim>,
    pub(super) create: bool,
    pub(super) deadline: Instant,
}

/// What became of a batch.
pub(super) struct Sent {
    pub(super) answers: Vec<Answer>,
    /// The connection owes no answer.
    pub(super) all_answered: bool,
}

/// Messages of one key and one stream that go together, or one that cannot go at all, with why.
#[derive(Debug, PartialEq, Eq)]
struct Segment {
    messages: Vec<usize>,
    unsendable: Option<String>,
}

/// What became of a segment.
struct Fate {
    answers: Vec<Answer>,
    answered: bool,
}

impl Adding<'_> {
    /// Keys side by side, the segments of one key one after the other.
    pub(super) async fn send(&self, batch: &[Message<'_>]) -> Sent {
        let mut sent = Sent { answers: vec![Answer::Unsent; batch.len()], all_answered: true };
        let keys = segments_by_key(batch, self.lease.max_value);
        let mut running: FuturesUnordered<_> =
            keys.into_iter().map(|segments| self.send_key(batch, segments)).collect();
        while let Some((answers, answered)) = running.next().await {
            sent.all_answered &= answered;
            for (index, answer) in answers {
                sent.answers[index] = answer;
            }
        }
        sent
    }

    async fn send_key(&self, batch: &[Message<'_>], segments: Vec<Segment>) -> (Vec<(usize, Answer)>, bool) {
        let mut answers = Vec::with_capacity(segments.iter().map(|segment| segment.messages.len()).sum());
        for segment in segments {
            if Instant::now() >= self.deadline {
                break;
            }
            let fate = self.send_segment(batch, &segment).await;
            let stop = !fate.answers.iter().all(Answer::is_acked);
            answers.extend(segment.messages.into_iter().zip(fate.answers));
            if stop {
                return (answers, fate.answered);
            }
        }
        (answers, true)
    }

    async fn send_segment(&self, batch: &[Message<'_>], segment: &Segment) -> Fate {
        if let Some(error) = &segment.unsendable {
            return Fate { answers: vec![Answer::refused(Cause::Message, error.as_str())], answered: true };
        }
        let messages = &segment.messages;
        let transaction = messages.len() > 1;
        let mut commands = pipe();
        if transaction {
            commands.add_command(cmd("MULTI"));
        }
        for index in messages {
            commands.add_command(entry::xadd(&batch[*index], self.create, self.trim));
        }
        if transaction {
            commands.add_command(cmd("EXEC"));
        }
        let stream = batch[messages[0]].destination.as_deref().unwrap_or_default();
        let unanswered = |answer: Answer| Fate { answers: vec![answer; messages.len()], answered: false };
        match timeout_at(self.deadline, self.lease.ask(&commands)).await {
            Err(_) => unanswered(Answer::silence(Cause::Sink)),
            Ok(Err(error)) => unanswered(lost(&error)),
            Ok(Ok(values)) if transaction => {
                Fate { answers: transaction_answers(stream, &values, messages.len()), answered: true }
            }
            Ok(Ok(values)) => Fate { answers: plain_answers(stream, &values), answered: true },
        }
    }
}

fn lost(error: &RedisError) -> Answer {
    Answer::refused(Cause::Sink, format!("the connection was lost: {}", describe(error)))
}

/// Lists of segments, one list a key, in the batch's order. A new segment begins where the stream changes, so that
/// what goes to the next stream waits for what goes to the one before.
fn segments_by_key(batch: &[Message<'_>], max_value: u64) -> Vec<Vec<Segment>> {
    let mut places: HashMap<(&str, &str), usize> = HashMap::new();
    let mut keys: Vec<(Vec<Segment>, usize)> = Vec::new();
    for (index, message) in batch.iter().enumerate() {
        let key = (message.event.aggregate_type.as_str(), message.event.aggregate_id.as_str());
        let place = *places.entry(key).or_insert_with(|| {
            keys.push((Vec::new(), 0));
            keys.len() - 1
        });
        let (segments, bytes) = &mut keys[place];
        let unsendable = entry::unsendable(message, max_value);
        let size = entry::size(message);
        let fits = |last: &&mut Segment| {
            unsendable.is_none()
                && last.unsendable.is_none()
                && last.messages.len() < SEGMENT_ENTRIES
                && *bytes + size <= SEGMENT_BYTES
                && batch[last.messages[0]].destination == message.destination
        };
        if let Some(last) = segments.last_mut().filter(fits) {
            last.messages.push(index);
            *bytes += size;
        } else {
            segments.push(Segment { messages: vec![index], unsendable });
            *bytes = size;
        }
    }
    keys.into_iter().map(|(segments, _)| segments).collect()
}

fn plain_answers(stream: &str, values: &[Value]) -> Vec<Answer> {
    values.iter().map(|value| entry_answer(stream, value)).collect()
}

fn entry_answer(stream: &str, value: &Value) -> Answer {
    match value {
        Value::BulkString(id) => {
            Answer::Acked { receipt: Some(format!("{stream}@{}", String::from_utf8_lossy(id))) }
        }
        Value::Nil => Answer::refused(
            Cause::Destination,
            format!(
                "stream `{stream}` does not exist; create it (XGROUP CREATE {stream} GROUP $ MKSTREAM), or set `create = true`"
            ),
        ),
        Value::ServerError(error) => refusal::refused(stream, error),
        _ => Answer::refused(Cause::Unclear, format!("stream `{stream}`: not an answer to XADD")),
    }
}

/// `MULTI`, its `XADD`s and `EXEC`: none is added unless all are.
fn transaction_answers(stream: &str, values: &[Value], count: usize) -> Vec<Answer> {
    let (queued, executed) = match values {
        [multi, queued @ .., executed] if queued.len() == count => {
            if matches!(multi, Value::ServerError(_)) {
                // It was no transaction then, and each command has its own answer.
                return plain_answers(stream, queued);
            }
            (queued, executed)
        }
        _ => return first_refused(Answer::refused(Cause::Unclear, "not an answer to a transaction"), count),
    };
    if let Value::Array(entries) = executed
        && entries.len() == count
    {
        return plain_answers(stream, entries);
    }
    let reason = queued.iter().chain([executed]).find_map(|value| match value {
        Value::ServerError(error) => Some(refusal::refused(stream, error)),
        _ => None,
    });
    let unclear =
        || Answer::refused(Cause::Unclear, format!("stream `{stream}`: the transaction was not run"));
    first_refused(reason.unwrap_or_else(unclear), count)
}

/// None was added, so the first is the one that the others wait for.
fn first_refused(answer: Answer, count: usize) -> Vec<Answer> {
    let mut answers = vec![Answer::Unsent; count];
    answers[0] = answer;
    answers
}

/// What must have a batch besides the server's memory.
#[derive(Clone, Debug)]
pub(super) struct Confirmation {
    /// The append-only files.
    pub(super) aof: bool,
    pub(super) replicas: u32,
    pub(super) timeout: Duration,
}

impl Confirmation {
    /// Waits for it. What is not confirmed counts as not delivered, though it may be.
    pub(super) async fn confirm(&self, lease: &Lease<'_>, sent: Sent, deadline: Instant) -> Sent {
        if !sent.answers.iter().any(Answer::is_acked) {
            return sent;
        }
        let (refused, answered) = match sent.all_answered {
            true => self.ask(lease, deadline).await,
            false => (Some("the connection was lost before replicas confirmed".to_owned()), false),
        };
        let Some(error) = refused else { return Sent { all_answered: answered, ..sent } };
        let unconfirmed = |answer: Answer| {
            if answer.is_acked() { Answer::refused(Cause::Sink, error.as_str()) } else { answer }
        };
        Sent { answers: sent.answers.into_iter().map(unconfirmed).collect(), all_answered: answered }
    }

    /// Why it is not confirmed, if so; and whether the server has answered.
    async fn ask(&self, lease: &Lease<'_>, deadline: Instant) -> (Option<String>, bool) {
        let left = deadline.saturating_duration_since(Instant::now());
        // 0 would be for ever.
        let timeout_ms = u64::try_from(self.timeout.min(left).as_millis()).unwrap_or(u64::MAX).max(1);
        let mut wait = cmd(if self.aof { "WAITAOF" } else { "WAIT" });
        if self.aof {
            wait.arg(1);
        }
        wait.arg(self.replicas).arg(timeout_ms);
        let mut commands = pipe();
        commands.add_command(wait);
        match timeout_at(deadline, lease.ask(&commands)).await {
            Err(_) => (Some("nothing was confirmed before the deadline".to_owned()), false),
            Ok(Err(error)) => (Some(format!("the connection was lost: {}", describe(&error))), false),
            Ok(Ok(values)) => (self.shortfall(values.first()), true),
        }
    }

    fn shortfall(&self, value: Option<&Value>) -> Option<String> {
        let wanted = i64::from(self.replicas);
        let (flushed, replicas) = match value {
            Some(Value::Int(replicas)) if !self.aof => (true, *replicas),
            Some(Value::Array(counts)) if self.aof => match counts.as_slice() {
                [Value::Int(local), Value::Int(replicas)] => (*local >= 1, *replicas),
                _ => (false, 0),
            },
            Some(Value::ServerError(error)) => return Some(refusal::text(error)),
            _ => (false, 0),
        };
        let within = humantime_serde::re::humantime::format_duration(self.timeout);
        if !flushed {
            return Some(format!("the server did not flush its append-only file within {within}"));
        }
        (replicas < wanted).then(|| format!("{replicas} of {wanted} replicas confirmed within {within}"))
    }
}

#[cfg(test)]
#[path = "publish_tests.rs"]
mod tests;
