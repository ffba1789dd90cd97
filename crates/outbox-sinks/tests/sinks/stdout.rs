//! The stdout sink on a pipe: never blocks past its deadline, never splices lines.

use std::io::{PipeReader, Read, pipe};

use crate::common::{event, messages, soon};
use outbox_sinks::stdout::Stdout;
use outbox_sinks::{Answer, Cause, Sink};
use outbox_store::Event;
use tokio::time::{Duration, Instant};

/// More than a pipe holds.
const MANY: i64 = 2000;

fn piped() -> (Stdout, PipeReader) {
    let (reader, writer) = pipe().unwrap();
    (Stdout::on(writer.into()), reader)
}

fn many() -> Vec<Event> {
    (0..MANY).map(|seq| event(seq, "a", "{}")).collect()
}

fn whole_lines(text: &str) -> usize {
    text.lines().filter(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()).count()
}

#[tokio::test]
async fn every_line_arrives_through_a_pipe_that_is_read_slowly() {
    let (sink, mut reader) = piped();
    let read = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    });
    let events = many();
    assert!(sink.publish(&messages(&events), soon()).await.iter().all(Answer::is_acked));
    drop(sink);
    assert_eq!(whole_lines(&read.join().unwrap()), events.len());
}

#[tokio::test]
async fn a_reader_that_stops_ends_in_silence_at_the_deadline_and_later_lines_are_whole() {
    let (sink, mut reader) = piped();
    let events = many();
    let answers = sink.publish(&messages(&events), Instant::now() + Duration::from_millis(200)).await;
    let acked = answers.iter().take_while(|answer| answer.is_acked()).count();
    assert!(acked < events.len());
    assert!(answers[acked] == Answer::silence(Cause::Sink) || answers[acked] == Answer::Unsent);
    assert!(answers[acked + 1..].iter().all(|answer| *answer == Answer::Unsent));
    let read = std::thread::spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        text
    });
    assert!(sink.publish(&messages(&events[..3]), soon()).await.iter().all(Answer::is_acked));
    drop(sink);
    assert_eq!(whole_lines(&read.join().unwrap()), acked + 3);
}

#[tokio::test]
async fn a_closed_pipe_is_the_sinks_fault() {
    let (sink, reader) = piped();
    drop(reader);
    let events = many();
    let answers = sink.publish(&messages(&events[..2]), soon()).await;
    assert!(matches!(&answers[0], Answer::Refused(refusal) if refusal.cause == Cause::Sink));
    assert_eq!(answers[1], Answer::Unsent);
}
