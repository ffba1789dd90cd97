use std::sync::Arc;

use bytes::Bytes;
use outbox_store::Event;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::*;
use crate::{Refusal, Sink};

const BODIES: usize = 64;
const BODY_BYTES: usize = 1 << 20;

fn events(count: usize) -> Vec<Event> {
    let event = |n: usize| Event { id: Uuid::from_u128(n as u128), ..Event::bare(1, format!("k{n}")) };
    (0..count).map(event).collect()
}

fn messages<'a>(events: &'a [Event], body: &Bytes) -> Vec<Message<'a>> {
    let message = |event| Message {
        event,
        queue: "default",
        destination: Some("orders".into()),
        headers: Vec::new(),
        body: Some(body.clone()),
    };
    events.iter().map(message).collect()
}

/// A sink, and where its connection will come from.
async fn sink(more: serde_json::Value) -> (Arc<dyn Sink>, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let mut options = json!({ "url": format!("nats://{}", listener.local_addr().expect("an address")) });
    if let (Some(options), serde_json::Value::Object(more)) = (options.as_object_mut(), more) {
        options.extend(more);
    }
    let config: crate::nats::Config = serde_json::from_value(options).expect("options");
    (config.build("orders").expect("a sink"), listener)
}

/// A connection to a server of the test's own, as far as the first batch.
async fn greeted(listener: &TcpListener) -> BufReader<TcpStream> {
    let (stream, _) = listener.accept().await.expect("a connection");
    let mut server = BufReader::new(stream);
    let info = json!({"server_id": "s", "server_name": "s", "version": "2.9.0", "go": "", "host": "h", "port": 1,
        "headers": true, "max_payload": 2 * BODY_BYTES, "proto": 1, "client_id": 1});
    server.get_mut().write_all(format!("INFO {info}\r\n").as_bytes()).await.expect("written");
    line(&mut server, "PING").await;
    server.get_mut().write_all(b"PONG\r\n").await.expect("written");
    server
}

/// The next line that begins so.
async fn line(server: &mut BufReader<TcpStream>, start: &str) -> String {
    loop {
        let mut line = String::new();
        let length = server.read_line(&mut line).await.expect("a line");
        assert!(length > 0, "the end instead of {start}");
        if line.starts_with(start) {
            return line;
        }
    }
}

/// Bytes that arrive from now on, to the end of the connection.
async fn rest(mut server: BufReader<TcpStream>) -> usize {
    let mut rest = Vec::new();
    // A connection that is cut off may end in an error; what came before counts.
    let _ = timeout_at(Instant::now() + Duration::from_secs(10), server.read_to_end(&mut rest)).await;
    rest.len()
}

#[tokio::test]
async fn at_the_deadline_nothing_is_left_to_be_sent() {
    let (sink, listener) = sink(json!({})).await;
    let (events, body) = (events(BODIES), Bytes::from(vec![b'x'; BODY_BYTES]));
    let batch = messages(&events, &body);
    let publish = sink.publish(&batch, Instant::now() + Duration::from_secs(1));
    let (answers, server) = tokio::join!(publish, greeted(&listener));
    let silent =
        |answer: &Answer| matches!(answer, Answer::Refused(Refusal { cause: Cause::Sink, silent: true, .. }));
    assert!(answers.iter().all(silent), "{answers:?}");
    let bytes = rest(server).await;
    assert!(bytes < BODIES * BODY_BYTES, "all {bytes} bytes arrived after the deadline");
}

#[tokio::test]
async fn a_batch_that_is_dropped_leaves_nothing_to_be_sent() {
    let (sink, listener) = sink(json!({})).await;
    let (events, body) = (events(BODIES), Bytes::from(vec![b'x'; BODY_BYTES]));
    let batch = messages(&events, &body);
    let mut publish = Box::pin(sink.publish(&batch, Instant::now() + Duration::from_secs(30)));
    let server = tokio::select! {
        server = greeted(&listener) => server,
        _ = &mut publish => panic!("answered before it was asked"),
    };
    // Until the sockets are full.
    let _ = timeout_at(Instant::now() + Duration::from_millis(500), &mut publish).await;
    drop(publish);
    let bytes = rest(server).await;
    assert!(bytes > 0 && bytes < BODIES * BODY_BYTES, "{bytes} bytes arrived");
}

#[tokio::test]
async fn a_connection_that_is_lost_answers_at_once_and_is_the_sinks_fault() {
    let (sink, listener) = sink(json!({})).await;
    let events = events(3);
    let batch = messages(&events, &Bytes::from_static(b"x"));
    let server = async {
        let mut server = greeted(&listener).await;
        line(&mut server, "HPUB orders").await;
    };
    let (answers, ()) = tokio::join!(sink.publish(&batch, Instant::now() + Duration::from_secs(30)), server);
    let lost = |answer: &Answer| matches!(answer, Answer::Refused(Refusal { cause: Cause::Sink, silent: false, error, .. }) if error.contains("lost"));
    assert!(answers.iter().all(lost), "{answers:?}");
}

/// Where somebody who is no stream listens to the subject, nobody says that there is no stream.
#[tokio::test]
async fn a_subject_without_a_stream_is_told_from_a_silent_server() {
    let (sink, listener) = sink(json!({"ack_timeout": "50ms"})).await;
    let events = events(1);
    let batch = messages(&events, &Bytes::from_static(b"x"));
    let server = async {
        let mut server = greeted(&listener).await;
        let sub = line(&mut server, "SUB ").await;
        let sid = sub.split_whitespace().next_back().expect("a subscription").to_owned();
        let question = line(&mut server, "PUB $JS.API.STREAM.NAMES").await;
        let reply = question.split_whitespace().nth(2).expect("a reply subject");
        let answer = r#"{"total":0,"offset":0,"limit":1024,"streams":null}"#;
        let message = format!("MSG {reply} {sid} {}\r\n{answer}\r\n", answer.len());
        server.get_mut().write_all(message.as_bytes()).await.expect("written");
        server
    };
    let (answers, _server) =
        tokio::join!(sink.publish(&batch, Instant::now() + Duration::from_secs(30)), server);
    assert!(
        matches!(&answers[0], Answer::Refused(Refusal { cause: Cause::Destination, error, .. }) if error.contains("no stream takes")),
        "{answers:?}"
    );
}
