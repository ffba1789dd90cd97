//! The helper for sinks that send message by message.

use std::collections::HashSet;
use std::sync::Mutex;

use crate::common::{event, messages};
use outbox_sinks::batch::{publish_keyed, publish_keyed_to, silence_cause};
use outbox_sinks::{Answer, Cause, Refusal};
use tokio::time::{Duration, Instant, sleep};

fn acked() -> Answer {
    Answer::Acked { receipt: None }
}

#[tokio::test(start_paused = true)]
async fn one_message_of_a_key_is_in_flight_and_no_more_than_allowed_in_all() {
    let events: Vec<_> = (0..60).map(|seq| event(seq, ["a", "b", "c", "d"][seq as usize % 4], "1")).collect();
    let batch = messages(&events);
    let flying: Mutex<HashSet<&str>> = Mutex::default();
    let sent: Mutex<Vec<i64>> = Mutex::default();
    let answers = publish_keyed(&batch, Instant::now() + Duration::from_secs(60), 3, |message| {
        let (flying, sent) = (&flying, &sent);
        async move {
            sent.lock().unwrap().push(message.event.seq);
            {
                let mut flying = flying.lock().unwrap();
                assert!(flying.insert(&message.event.aggregate_id), "two of a key");
                assert!(flying.len() <= 3, "more than three in all");
            }
            sleep(Duration::from_millis(5)).await;
            flying.lock().unwrap().remove(message.event.aggregate_id.as_str());
            acked()
        }
    })
    .await;
    assert!(answers.iter().all(Answer::is_acked));
    let sent = sent.into_inner().unwrap();
    for key in 0..4 {
        let of_key: Vec<_> = sent.iter().filter(|seq| **seq % 4 == key).collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_rest_of_a_key_is_not_sent_after_a_message_that_was_not_accepted() {
    let events = [event(1, "a", "1"), event(2, "a", "1"), event(3, "b", "1"), event(4, "a", "1")];
    let batch = messages(&events);
    let answers = publish_keyed(&batch, Instant::now() + Duration::from_secs(1), 8, |message| async move {
        if message.event.seq == 2 { Answer::refused(Cause::Unclear, "nack") } else { acked() }
    })
    .await;
    assert_eq!(answers, [acked(), Answer::refused(Cause::Unclear, "nack"), acked(), Answer::Unsent]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_after_the_deadline_and_silence_is_told_apart() {
    let events =
        [event(1, "a", "1"), event(2, "b", "1"), event(3, "b", "1"), event(4, "c", "1"), event(5, "c", "1")];
    let mut batch = messages(&events);
    batch[0].destination = Some("here".into());
    batch[1].destination = Some("here".into());
    batch[2].destination = Some("here".into());
    batch[3].destination = Some("there".into());
    let deadline = Instant::now() + Duration::from_secs(1);
    let answers = publish_keyed(&batch, deadline, 8, |message| async move {
        assert!(Instant::now() < deadline);
        match message.event.seq {
            1 | 4 => std::future::pending().await,
            _ => sleep(Duration::from_millis(10)).await,
        }
        acked()
    })
    .await;
    assert_eq!(
        answers,
        [Answer::silence(Cause::Unclear), acked(), acked(), Answer::silence(Cause::Sink), Answer::Unsent]
    );
    assert!(
        publish_keyed(&batch, deadline, 8, |_| async { acked() })
            .await
            .iter()
            .all(|one| *one == Answer::Unsent)
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_as_good_as_silence_is_judged_by_what_was_sent_later_to_its_place() {
    let events = [event(1, "a", "1"), event(2, "b", "1"), event(3, "c", "1"), event(4, "d", "1")];
    let mut batch = messages(&events);
    batch[3].destination = Some("there".into());
    let doubtful =
        |cause, silent| Answer::Refused(Refusal { cause, error: "500".into(), retry_after: None, silent });
    let send = |seq: i64| match seq {
        1 | 3 => doubtful(Cause::Unclear, true),
        _ => acked(),
    };
    let soon = Instant::now() + Duration::from_secs(60);
    let answers = publish_keyed(&batch, soon, 1, |message| async { send(message.event.seq) }).await;
    let (unclear, down) = (doubtful(Cause::Unclear, true), doubtful(Cause::Sink, true));
    assert_eq!(answers, [unclear.clone(), acked(), down.clone(), acked()]);
    let one_place = |_: &_| ();
    let answers =
        publish_keyed_to(&batch, soon, 1, one_place, |message| async { send(message.event.seq) }).await;
    assert_eq!(answers, [unclear.clone(), acked(), unclear, acked()]);
    let sure = publish_keyed(&batch[..2], soon, 1, |message| async move {
        if message.event.seq == 1 { doubtful(Cause::Sink, true) } else { acked() }
    });
    assert_eq!(sure.await, [down, acked()], "who is sure is not judged");
}

#[test]
fn silence_is_unclear_only_when_something_later_was_acknowledged() {
    assert_eq!(silence_cause(3, Some(4)), Cause::Unclear);
    assert_eq!(silence_cause(3, Some(2)), Cause::Sink);
    assert_eq!(silence_cause(3, None), Cause::Sink);
}
