//! One batch on its way: what may be sent next, and what the reports make of it. Pure; no client, no clock.

use std::collections::{HashMap, VecDeque};

use rdkafka::types::RDKafkaErrorCode as Code;

use super::blame::{cause, is_silence};
use super::producer::Report;
use crate::batch::silence_cause;
use crate::{Answer, Cause, Message, Refusal};

/// What a message weighs on the wire beyond its bytes, at most: its own fields, and those of a header.
const MESSAGE_OVERHEAD: usize = 128;
const HEADER_OVERHEAD: usize = 10;

/// A batch while it is published.
///
/// Whole runs of a key are sent at once, in order. Two things stop a key for a while: a message larger than a batch,
/// which a broker may refuse for its size, is answered before the next of its key is sent; and a message that was
/// refused for its size in the company of others is tried again alone, because a broker refuses batches, not messages.
pub(super) struct Run<'m> {
    batch: &'m [Message<'m>],
    batch_size: usize,
    max_message_bytes: u32,
    key_of: Vec<usize>,
    keys: Vec<Key>,
    ready: VecDeque<usize>,
    /// Refused for their size in company.
    suspects: VecDeque<usize>,
    /// The suspect that is on its way.
    alone: Option<usize>,
    fates: Vec<Fate>,
    /// Those that their key waits for.
    holds: Vec<bool>,
    sends: u64,
    outstanding: usize,
}

#[derive(Default)]
struct Key {
    holds: usize,
    stopped: bool,
    waiting: VecDeque<usize>,
}

#[derive(Clone, Debug, PartialEq)]
enum Fate {
    Unsent,
    Sent { at: u64 },
    Acked { at: u64, partition: i32, offset: i64 },
    Silent { at: u64, partition: i32 },
    Refused(Answer),
}

/// How a publish ended, as far as silent messages are concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ending {
    /// Why the producer takes nothing more.
    pub(super) fatal: Option<String>,
    /// What went wrong last.
    pub(super) trouble: Option<String>,
}

impl<'m> Run<'m> {
    pub(super) fn new(batch: &'m [Message<'m>], batch_size: usize, max_message_bytes: u32) -> Self {
        let mut numbers: HashMap<(&str, &str), usize> = HashMap::new();
        let mut key_of = Vec::with_capacity(batch.len());
        for message in batch {
            let next = numbers.len();
            let key = (message.event.aggregate_type.as_str(), message.event.aggregate_id.as_str());
            key_of.push(*numbers.entry(key).or_insert(next));
        }
        Self {
            batch,
            batch_size,
            max_message_bytes,
            key_of,
            keys: numbers.iter().map(|_| Key::default()).collect(),
            ready: (0..batch.len()).collect(),
            suspects: VecDeque::new(),
            alone: None,
            fates: vec![Fate::Unsent; batch.len()],
            holds: vec![false; batch.len()],
            sends: 0,
            outstanding: 0,
        }
    }

    /// Each topic once, in the order of the batch.
    pub(super) fn topics(&self) -> Vec<&'m str> {
        let mut topics: Vec<&str> = Vec::new();
        let mut last = None;
        for message in self.batch {
            let topic = message.destination.as_deref();
            if topic != last && topic.is_some_and(|topic| !topics.contains(&topic)) {
                topics.extend(topic);
            }
            last = topic;
        }
        topics
    }

    /// Answers for every message of a topic, none of which is sent.
    pub(super) fn refuse_topic(&mut self, topic: &str, answer: &Answer) {
        for index in 0..self.batch.len() {
            if self.batch[index].destination.as_deref() == Some(topic) {
                self.refuse(index, answer.clone());
            }
        }
    }

    /// The next message to send, with its topic.
    pub(super) fn next(&mut self) -> Option<(usize, &'m str, &'m Message<'m>)> {
        let index = self.next_index()?;
        let message = &self.batch[index];
        match message.destination.as_deref() {
            Some(topic) => Some((index, topic, message)),
            None => {
                self.refuse(index, Answer::refused(Cause::Message, "no destination: it names the topic"));
                self.next()
            }
        }
    }

    fn next_index(&mut self) -> Option<usize> {
        if self.alone.is_some() {
            return None;
        }
        while let Some(index) = self.ready.pop_front() {
            let key = &mut self.keys[self.key_of[index]];
            if key.stopped || self.fates[index] != Fate::Unsent {
                continue;
            }
            if key.holds == 0 {
                return Some(index);
            }
            key.waiting.push_back(index);
        }
        if self.outstanding > 0 {
            return None;
        }
        while let Some(index) = self.suspects.pop_front() {
            if !self.keys[self.key_of[index]].stopped {
                self.alone = Some(index);
                return Some(index);
            }
        }
        None
    }

    /// The message is in the producer's queue.
    pub(super) fn sent(&mut self, index: usize) {
        self.fates[index] = Fate::Sent { at: self.sends };
        self.sends += 1;
        self.outstanding += 1;
        if self.weight(index) + self.overhead(index) > self.batch_size && !self.holds[index] {
            self.hold(index);
        }
    }

    /// The producer's queue is full: the message is next again.
    pub(super) fn put_back(&mut self, index: usize) {
        if self.alone.take().is_some() {
            self.suspects.push_front(index);
        } else {
            self.ready.push_front(index);
        }
    }

    /// The producer did not take the message.
    pub(super) fn not_taken(&mut self, index: usize, code: Code) {
        let answer = match code {
            Code::MessageSizeTooLarge => {
                let error = format!(
                    "the message has {} bytes with its headers, more than `max_message_bytes` = {}; make it smaller, \
                     or raise that option and the topic's `max.message.bytes`",
                    self.weight(index),
                    self.max_message_bytes
                );
                Answer::refused(Cause::Message, error)
            }
            code => self.refused(index, code),
        };
        self.reject(index, answer);
    }

    /// The message gets this answer instead of being sent.
    pub(super) fn reject(&mut self, index: usize, answer: Answer) {
        if self.alone == Some(index) {
            self.alone = None;
        }
        self.refuse(index, answer);
    }

    /// What the producer says about a message that was sent.
    pub(super) fn report(&mut self, report: Report) {
        let Report { index, partition, outcome } = report;
        let Some(Fate::Sent { at }) = self.fates.get(index).cloned() else { return };
        self.outstanding -= 1;
        let alone = self.alone == Some(index);
        if alone {
            self.alone = None;
        }
        match outcome {
            Ok(offset) => {
                self.fates[index] = Fate::Acked { at, partition, offset };
                self.release(index);
            }
            Err(code) if is_silence(code) => {
                self.fates[index] = Fate::Silent { at, partition };
                self.stop(index);
            }
            Err(Code::MessageSizeTooLarge | Code::MessageBatchTooLarge)
                if !alone && self.weight(index) <= self.batch_size =>
            {
                self.fates[index] = Fate::Unsent;
                self.hold(index);
                self.suspects.push_back(index);
            }
            Err(code) => {
                let answer = self.refused(index, code);
                self.refuse(index, answer);
            }
        }
    }

    /// Those of which nothing was heard at all are silent.
    pub(super) fn give_up(&mut self) {
        for index in 0..self.batch.len() {
            if let Fate::Sent { at } = self.fates[index] {
                self.fates[index] = Fate::Silent { at, partition: -1 };
                self.stop(index);
            }
        }
    }

    /// Topics that did not do as they should: they are looked up again next time.
    pub(super) fn doubtful_topics(&self) -> impl Iterator<Item = &'m str> {
        let doubtful = |fate: &Fate| match fate {
            Fate::Silent { .. } => true,
            Fate::Refused(Answer::Refused(refusal)) => refusal.cause == Cause::Destination,
            _ => false,
        };
        let batch = self.batch;
        let indices = self.fates.iter().enumerate().filter(move |(_, fate)| doubtful(fate));
        indices.filter_map(|(index, _)| batch[index].destination.as_deref())
    }

    /// One answer a message.
    pub(super) fn answers(self, ending: &Ending) -> Vec<Answer> {
        let mut last_acked: HashMap<(&str, i32), u64> = HashMap::new();
        for (message, fate) in self.batch.iter().zip(&self.fates) {
            if let (Some(topic), Fate::Acked { at, partition, .. }) = (message.destination.as_deref(), fate) {
                let last = last_acked.entry((topic, *partition)).or_default();
                *last = (*last).max(*at);
            }
        }
        let mut gaps = vec![false; self.keys.len()];
        let mut answers = Vec::with_capacity(self.batch.len());
        for (index, fate) in self.fates.into_iter().enumerate() {
            let topic = self.batch[index].destination.as_deref().unwrap_or_default();
            let gap = &mut gaps[self.key_of[index]];
            let answer = match fate {
                // It overtook one of its key that will be sent again: so will it, in its place.
                Fate::Acked { .. } if *gap => Answer::Unsent,
                Fate::Acked { partition, offset, .. } => {
                    Answer::Acked { receipt: Some(receipt(topic, partition, offset)) }
                }
                Fate::Unsent | Fate::Sent { .. } => Answer::Unsent,
                Fate::Refused(answer) => answer,
                Fate::Silent { at, partition } => {
                    silence(silence_cause(at, last_acked.get(&(topic, partition)).copied()), ending)
                }
            };
            *gap |= leaves_gap(&answer);
            answers.push(answer);
        }
        answers
    }

    /// Its key goes no further in this batch.
    fn stop(&mut self, index: usize) {
        self.keys[self.key_of[index]].stopped = true;
    }

    fn refuse(&mut self, index: usize, answer: Answer) {
        self.fates[index] = Fate::Refused(answer);
        self.stop(index);
    }

    fn hold(&mut self, index: usize) {
        if !std::mem::replace(&mut self.holds[index], true) {
            self.keys[self.key_of[index]].holds += 1;
        }
    }

    fn release(&mut self, index: usize) {
        if !std::mem::take(&mut self.holds[index]) {
            return;
        }
        let key = &mut self.keys[self.key_of[index]];
        key.holds -= 1;
        if key.holds == 0 {
            while let Some(index) = key.waiting.pop_back() {
                self.ready.push_front(index);
            }
        }
    }

    fn refused(&self, index: usize, code: Code) -> Answer {
        let topic = self.batch[index].destination.as_deref().unwrap_or_default();
        let error = match code {
            Code::MessageSizeTooLarge | Code::MessageBatchTooLarge => format!(
                "the message has {} bytes with its headers, more than the topic {topic} takes; make it smaller, or raise \
                 the topic's `max.message.bytes` ({code})",
                self.weight(index)
            ),
            Code::TopicAuthorizationFailed => {
                format!("no permission to write to the topic {topic}; allow WRITE and DESCRIBE ({code})")
            }
            code => format!("topic {topic}: {code}"),
        };
        Answer::refused(cause(code), error)
    }

    /// Bytes of key, headers and body.
    fn weight(&self, index: usize) -> usize {
        let message = &self.batch[index];
        let headers: usize = message.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        message.body.as_ref().map_or(0, bytes::Bytes::len) + message.event.aggregate_id.len() + headers
    }

    fn overhead(&self, index: usize) -> usize {
        MESSAGE_OVERHEAD + HEADER_OVERHEAD * self.batch[index].headers.len()
    }
}

/// Whether the message will be sent again, after what follows it in its key.
fn leaves_gap(answer: &Answer) -> bool {
    match answer {
        Answer::Acked { .. } => false,
        Answer::Refused(refusal) => refusal.cause != Cause::Message,
        Answer::Unsent => true,
    }
}

fn receipt(topic: &str, partition: i32, offset: i64) -> String {
    // A retry whose first try had been written is acknowledged without an offset.
    if offset < 0 { format!("{topic}/{partition}") } else { format!("{topic}/{partition}@{offset}") }
}

/// The producer failed: whatever it had is the sink's to answer for.
pub(super) fn fatal_answer(error: &str) -> Answer {
    Answer::refused(Cause::Sink, format!("{error}; the next batch gets a new producer"))
}

fn silence(cause: Cause, ending: &Ending) -> Answer {
    if let Some(fatal) = &ending.fatal {
        return fatal_answer(fatal);
    }
    let mut answer = Answer::silence(cause);
    if let (Answer::Refused(Refusal { error, .. }), Some(trouble)) = (&mut answer, &ending.trouble) {
        *error = format!("{error}; last error: {trouble}");
    }
    answer
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
