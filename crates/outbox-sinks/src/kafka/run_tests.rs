use std::borrow::Cow;

use bytes::Bytes;
use outbox_store::{Event, Payload};
use uuid::Uuid;

use super::*;

fn events(keys: &[&str], bytes: usize) -> Vec<Event> {
    let event = |(seq, key): (usize, &&str)| Event {
        id: Uuid::from_u128(seq as u128),
        payload: Payload::Binary(Bytes::from(vec![0; bytes])),
        ..Event::bare(seq as i64, *key)
    };
    keys.iter().enumerate().map(event).collect()
}

fn messages(events: &[Event]) -> Vec<Message<'_>> {
    let message = |event| Message {
        event,
        queue: "default",
        destination: Some(Cow::Borrowed("orders")),
        headers: Vec::new(),
        body: event.payload.bytes().cloned(),
    };
    events.iter().map(message).collect()
}

/// Everything that may be sent now, sent.
fn send_all(run: &mut Run<'_>) -> Vec<usize> {
    let mut sent = Vec::new();
    while let Some((index, _, _)) = run.next() {
        run.sent(index);
        sent.push(index);
    }
    sent
}

fn report(run: &mut Run<'_>, index: usize, partition: i32, outcome: Result<i64, Code>) {
    run.report(Report { index, partition, outcome });
}

fn cause_of(answer: &Answer) -> Option<Cause> {
    match answer {
        Answer::Refused(refusal) => Some(refusal.cause),
        _ => None,
    }
}

#[test]
fn whole_runs_are_sent_at_once_and_answered_one_by_one() {
    let events = events(&["a", "b", "a", "b"], 10);
    let batch = messages(&events);
    let mut run = Run::new(&batch, 1000, 2000);
    assert_eq!(send_all(&mut run), [0, 1, 2, 3]);
    for index in 0..4 {
        report(&mut run, index, 0, Ok(7 + index as i64));
    }
    assert!(run.next().is_none());
    let answers = run.answers(&Ending::default());
    assert_eq!(answers[2], Answer::Acked { receipt: Some("orders/0@9".to_owned()) });
    assert!(answers.iter().all(Answer::is_acked));
}

#[test]
fn an_acknowledgement_without_an_offset_is_one() {
    let events = events(&["a"], 10);
    let batch = messages(&events);
    let mut run = Run::new(&batch, 1000, 2000);
    send_all(&mut run);
    report(&mut run, 0, 3, Ok(-1001));
    assert_eq!(run.answers(&Ending::default()), [Answer::Acked { receipt: Some("orders/3".to_owned()) }]);
}

#[test]
fn what_overtook_one_of_its_key_is_not_reported() {
    let events = events(&["a", "a", "b"], 10);
    let batch = messages(&events);
    let mut run = Run::new(&batch, 1000, 2000);
    send_all(&mut run);
    report(&mut run, 0, 0, Err(Code::PurgeInflight));
    report(&mut run, 1, 0, Ok(1));
    report(&mut run, 2, 0, Ok(2));
    let answers = run.answers(&Ending::default());
    assert_eq!(answers[1], Answer::Unsent, "it is sent again behind the one it overtook");
    assert!(answers[2].is_acked(), "another key");
}

#[test]
fn behind_a_message_that_can_never_be_delivered_the_key_goes_on() {
    let events = events(&["a", "a"], 10);
    let batch = messages(&events);
    let mut run = Run::new(&batch, 1000, 2000);
    send_all(&mut run);
    report(&mut run, 0, 0, Err(Code::InvalidRecord));
    report(&mut run, 1, 0, Ok(1));
    let answers = run.answers(&Ending::default());
    assert_eq!(cause_of(&answers[0]), Some(Cause::Message));
    assert!(answers[1].is_acked());
}

#[test]
fn silence_is_unclear_when_a_later_send_to_its_partition_was_acknowledged() {
    let events = events(&["a", "b", "c", "d"], 10);
    let batch = messages(&events);
    let mut run = Run::new(&batch, 1000, 2000);
    send_all(&mut run);
    report(&mut run, 0, 0, Err(Code::PurgeInflight));
    report(&mut run, 1, 0, Ok(1));
    report(&mut run, 2, 0, Err(Code::PurgeQueue));
    report(&mut run, 3, 1, Err(Code::PurgeQueue));
    let answers = run.answers(&Ending { fatal: None, trouble: Some("refused".to_owned()) });
    let causes: Vec<_> = answers.iter().map(cause_of).collect();
    assert_eq!(causes, [Some(Cause::Unclear), None, Some(Cause::Sink), Some(Cause::Sink)]);
    assert!(
        matches!(&answers[3], Answer::Refused(refusal) if refusal.silent && refusal.error.ends_with("refused"))
    );
}

#[test]
fn after_a_fatal_error_the_sink_is_to_blame() {
    let events = events(&["a", "b"], 10);
    let batch = messages(&events);
    let mut run = Run::new(&batch, 1000, 2000);
    send_all(&mut run);
    report(&mut run, 0, 0, Err(Code::PurgeQueue));
    run.give_up();
    let answers = run.answers(&Ending { fatal: Some("Fatal error: broken".to_owned()), trouble: None });
    for answer in &answers {
        assert!(matches!(answer, Answer::Refused(r) if r.cause == Cause::Sink && r.error.contains("broken")));
    }
}

#[test]
fn a_message_that_travels_alone_is_answered_before_the_next_of_its_key() {
    let mut events = events(&["a", "b", "a", "a"], 10);
    events[0].payload = Payload::Binary(Bytes::from(vec![0; 1000]));
    let batch = messages(&events);
    let mut run = Run::new(&batch, 1000, 2000);
    assert_eq!(send_all(&mut run), [0, 1]);
    report(&mut run, 0, 0, Ok(0));
    assert_eq!(send_all(&mut run), [2, 3]);

    let mut run = Run::new(&batch, 1000, 2000);
    send_all(&mut run);
    report(&mut run, 0, 0, Err(Code::MessageSizeTooLarge));
    assert_eq!(send_all(&mut run), [0; 0], "the rest of the key waits for a verdict");
    report(&mut run, 1, 0, Ok(0));
    let answers = run.answers(&Ending::default());
    assert_eq!(cause_of(&answers[0]), Some(Cause::Message));
    assert_eq!(answers[2..], [Answer::Unsent, Answer::Unsent]);
}

#[test]
fn a_message_refused_for_its_size_in_company_is_tried_alone() {
    let events = events(&["a", "b", "b"], 10);
    let batch = messages(&events);
    let mut run = Run::new(&batch, 1000, 2000);
    send_all(&mut run);
    for index in 0..3 {
        report(&mut run, index, 0, Err(Code::MessageSizeTooLarge));
    }
    assert_eq!(send_all(&mut run), [0]);
    report(&mut run, 0, 0, Err(Code::MessageSizeTooLarge));
    assert_eq!(send_all(&mut run), [1]);
    report(&mut run, 1, 0, Ok(4));
    assert_eq!(send_all(&mut run), [2]);
    report(&mut run, 2, 0, Ok(5));
    let answers = run.answers(&Ending::default());
    assert_eq!(cause_of(&answers[0]), Some(Cause::Message));
    assert!(answers[1].is_acked() && answers[2].is_acked());
}

#[test]
fn a_full_queue_keeps_the_order() {
    let events = events(&["a", "a", "a"], 10);
    let batch = messages(&events);
    let mut run = Run::new(&batch, 1000, 2000);
    let (first, _, _) = run.next().unwrap();
    run.sent(first);
    let (second, _, _) = run.next().unwrap();
    run.put_back(second);
    report(&mut run, 0, 0, Ok(0));
    assert_eq!(send_all(&mut run), [1, 2]);
}

#[test]
fn a_topic_that_is_refused_costs_only_its_own_messages() {
    let events = events(&["a", "b", "c"], 10);
    let mut batch = messages(&events);
    batch[1].destination = Some(Cow::Borrowed("nowhere"));
    let mut run = Run::new(&batch, 1000, 2000);
    assert_eq!(run.topics(), ["orders", "nowhere"]);
    run.refuse_topic("nowhere", &Answer::refused(Cause::Destination, "missing"));
    assert_eq!(send_all(&mut run), [0, 2]);
    assert_eq!(run.doubtful_topics().collect::<Vec<_>>(), ["nowhere"]);
}
