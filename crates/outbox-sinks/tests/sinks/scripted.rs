//! The scripted sink and its controller: every reply, told apart.

use std::sync::Arc;

use crate::common::{event, messages, soon};
use outbox_sinks::scripted::{Controller, Delivery, Reply};
use outbox_sinks::{Answer, Cause, Refusal, Sink, SinkConfig, build};
use tokio::time::{Duration, Instant};

const AT_MOST: Duration = Duration::from_secs(60);

fn sink(controller: &Controller, pipelined: bool) -> Arc<dyn Sink> {
    let config = serde_json::json!({
        "type": "scripted", "address": controller.address(), "relay": "r1", "pipelined": pipelined,
    });
    build("orders", &serde_json::from_value::<SinkConfig>(config).unwrap()).unwrap()
}

fn cause(answer: &Answer) -> Option<Cause> {
    match answer {
        Answer::Refused(Refusal { cause, .. }) => Some(*cause),
        _ => None,
    }
}

fn by_key(delivery: &Delivery) -> Reply {
    match delivery.aggregate_id.as_str() {
        "nack" => Reply::Nack("nack".into()),
        "refuse" => Reply::Refuse("down".into()),
        "reject" => Reply::Reject("too large".into()),
        "miss" => Reply::Miss("no such topic".into()),
        "lose" => Reply::Lose,
        "late" => Reply::AckAfter(Duration::from_millis(5)),
        _ => Reply::Ack,
    }
}

#[tokio::test]
async fn each_reply_becomes_its_answer() {
    let controller = Controller::bind(by_key).await.unwrap();
    let keys = ["ok", "nack", "refuse", "reject", "miss", "late"];
    let events: Vec<_> = keys.iter().zip(1..).map(|(key, seq)| event(seq, key, "{\"a\":1}")).collect();
    let answers = sink(&controller, false).publish(&messages(&events), soon()).await;
    let causes: Vec<_> = answers.iter().map(cause).collect();
    let expected =
        [None, Some(Cause::Unclear), Some(Cause::Sink), Some(Cause::Message), Some(Cause::Destination), None];
    assert_eq!(causes, expected);
    let delivered: Vec<_> = controller.delivered().iter().map(|one| one.aggregate_id.clone()).collect();
    assert_eq!(delivered, ["ok", "late"]);
    let first = &controller.recorded()[0].delivery;
    assert_eq!((first.relay.as_str(), first.seq, first.body()), ("r1", 1, Some(b"{\"a\":1}".to_vec())));
}

#[tokio::test]
async fn a_lost_answer_is_silence_at_the_deadline() {
    let controller = Controller::bind(by_key).await.unwrap();
    let events = [event(1, "lose", "1"), event(2, "lose", "1")];
    let deadline = Instant::now() + Duration::from_millis(100);
    let answers = sink(&controller, false).publish(&messages(&events), deadline).await;
    assert_eq!(answers, [Answer::silence(Cause::Sink), Answer::Unsent]);
    assert_eq!(controller.delivered().len(), 1);
}

#[tokio::test]
async fn a_held_message_is_answered_when_the_test_says_so() {
    let controller = Controller::bind(|_| Reply::Hold).await.unwrap();
    let sink = sink(&controller, false);
    let published = tokio::spawn(async move {
        let events = [event(1, "a", "1")];
        sink.publish(&messages(&events), soon()).await
    });
    assert!(controller.wait_for(AT_MOST, |recorded| recorded.len() == 1).await);
    assert_eq!(controller.answer_held(|_| None), 0);
    assert_eq!((controller.held(), controller.answer_held(|_| Some(Reply::Ack))), (1, 1));
    assert!(published.await.unwrap()[0].is_acked());
}

#[tokio::test]
async fn a_cut_connection_blames_the_sink_and_is_made_anew() {
    let controller = Controller::bind(|_| Reply::Cut).await.unwrap();
    let sink = sink(&controller, false);
    let events = [event(1, "a", "1"), event(2, "b", "1")];
    let answers = sink.publish(&messages(&events), soon()).await;
    assert!(answers.iter().all(|answer| cause(answer) == Some(Cause::Sink)));
    controller.set_script(|_| Reply::Ack);
    assert!(sink.publish(&messages(&events), soon()).await.iter().all(Answer::is_acked));
}

#[tokio::test]
async fn nobody_there_blames_the_sink() {
    let controller = Controller::bind(|_| Reply::Ack).await.unwrap();
    let sink = sink(&controller, false);
    drop(controller);
    let events = [event(1, "a", "1")];
    assert_eq!(cause(&sink.publish(&messages(&events), soon()).await[0]), Some(Cause::Sink));
}

#[tokio::test]
async fn nothing_goes_out_once_the_caller_has_gone() {
    let controller = Controller::bind(|_| Reply::Hold).await.unwrap();
    let sink = sink(&controller, false);
    let events = [event(1, "a", "1"), event(2, "a", "1")];
    let batch = messages(&events);
    tokio::select! {
        _ = sink.publish(&batch, soon()) => panic!("nobody answered"),
        arrived = controller.wait_for(AT_MOST, |recorded| recorded.len() == 1) => assert!(arrived),
    }
    controller.answer_held(|_| Some(Reply::Ack));
    controller.set_script(|_| Reply::Ack);
    let last = [event(3, "c", "1")];
    assert!(sink.publish(&messages(&last), soon()).await[0].is_acked());
    let seqs: Vec<_> = controller.recorded().iter().map(|one| one.delivery.seq).collect();
    assert_eq!(seqs, [1, 3]);
}

#[tokio::test]
async fn pipelined_runs_arrive_in_order() {
    let controller = Controller::bind(|_| Reply::Ack).await.unwrap();
    let events: Vec<_> = (0..5000).map(|seq| event(seq, "a", "1")).collect();
    let answers = sink(&controller, true).publish(&messages(&events), soon()).await;
    assert!(answers.iter().all(Answer::is_acked));
    assert!(controller.delivered().iter().map(|one| one.seq).eq(0..5000));
}
