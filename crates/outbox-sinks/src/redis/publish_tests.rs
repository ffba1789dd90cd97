use std::sync::Arc;

use bytes::Bytes;
use outbox_store::Event;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

use super::*;
use crate::{Refusal, Sink};

fn event(key: &str) -> Event {
    Event { id: Uuid::nil(), ..Event::bare(1, key) }
}

fn message<'a>(event: &'a Event, stream: &'a str, body: &Bytes) -> Message<'a> {
    let headers = vec![("outbox-id".into(), "1".into())];
    Message { event, queue: "default", destination: Some(stream.into()), headers, body: Some(body.clone()) }
}

/// A connection to a server of the test's own.
struct Fake(BufReader<TcpStream>);

impl Fake {
    /// The words of the next command; panics when none comes.
    async fn command(&mut self) -> Option<Vec<String>> {
        let end = Instant::now() + Duration::from_secs(20);
        timeout_at(end, self.next_command()).await.expect("another command is waited for in vain")
    }

    async fn next_command(&mut self) -> Option<Vec<String>> {
        let mut words = vec![String::new(); self.number().await?];
        for word in &mut words {
            let mut bytes = vec![0; self.number().await? + 2];
            self.0.read_exact(&mut bytes).await.ok()?;
            bytes.truncate(bytes.len() - 2);
            *word = String::from_utf8_lossy(&bytes).into_owned();
        }
        Some(words)
    }

    async fn number(&mut self) -> Option<usize> {
        let mut line = String::new();
        self.0.read_line(&mut line).await.ok()?;
        line.trim_end().get(1..)?.parse().ok()
    }

    async fn answer(&mut self, lines: &[&str]) {
        for line in lines {
            self.0.get_mut().write_all(format!("{line}\r\n").as_bytes()).await.expect("written");
        }
    }

    /// Answers what a client asks before its first batch.
    async fn greet(&mut self) {
        while let Some(words) = self.command().await {
            match words[0].as_str() {
                "INFO" => self.answer(&["+redis_version:7.2.4"]).await,
                "CONFIG" => return self.answer(&["*0"]).await,
                _ => self.answer(&["+OK"]).await,
            }
        }
    }
}

/// A sink, and where its connection will come from.
async fn sink() -> (Arc<dyn Sink>, TcpListener) {
    sink_with(serde_json::json!({})).await
}

async fn sink_with(mut options: serde_json::Value) -> (Arc<dyn Sink>, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    options["url"] = format!("redis://{}", listener.local_addr().expect("an address")).into();
    let config: crate::redis::Config = serde_json::from_value(options).expect("options");
    (config.build("orders").expect("a sink"), listener)
}

async fn greeted(listener: &TcpListener) -> Fake {
    let (stream, _) = listener.accept().await.expect("a connection");
    let mut fake = Fake(BufReader::new(stream));
    fake.greet().await;
    fake
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

#[tokio::test]
async fn a_run_of_one_key_is_one_transaction_and_none_of_it_overtakes() {
    let (sink, listener) = sink().await;
    let (hot, other, body) = (event("hot"), event("other"), Bytes::from_static(b"x"));
    let batch: Vec<_> =
        [&hot, &hot, &other, &hot].iter().map(|event| message(event, "orders", &body)).collect();
    let server = async {
        let mut fake = greeted(&listener).await;
        let mut names = Vec::new();
        for _ in 0..6 {
            names.push(fake.command().await.expect("a command").swap_remove(0));
        }
        // Memory ran out for one entry and was there again for the next.
        fake.answer(&["+OK", "+QUEUED", "-OOM command not allowed", "+QUEUED"]).await;
        fake.answer(&["-EXECABORT Transaction discarded because of previous errors.", "$3", "7-0"]).await;
        names
    };
    let (answers, names) = tokio::join!(sink.publish(&batch, soon()), server);
    assert_eq!(names, ["MULTI", "XADD", "XADD", "XADD", "EXEC", "XADD"]);
    assert!(
        matches!(&answers[0], Answer::Refused(Refusal { cause: Cause::Sink, error, .. }) if error.starts_with("OOM")),
        "{answers:?}"
    );
    assert_eq!(answers[1], Answer::Unsent);
    assert_eq!(answers[2], Answer::Acked { receipt: Some("orders@7-0".into()) });
    assert_eq!(answers[3], Answer::Unsent);
}

#[tokio::test]
async fn the_next_stream_of_a_key_waits_for_the_one_before() {
    let (sink, listener) = sink().await;
    let (hot, body) = (event("hot"), Bytes::from_static(b"x"));
    let batch = [message(&hot, "missing", &body), message(&hot, "orders", &body)];
    let server = async {
        let mut fake = greeted(&listener).await;
        fake.command().await.expect("an XADD");
        fake.answer(&["$-1"]).await;
        fake
    };
    let (answers, fake) = tokio::join!(sink.publish(&batch, soon()), server);
    assert!(
        matches!(&answers[0], Answer::Refused(Refusal { cause: Cause::Destination, error, .. }) if error.contains("`missing`")),
        "{answers:?}"
    );
    assert_eq!(answers[1], Answer::Unsent);
    // Everything was answered, so the connection serves the next batch.
    let server = async {
        let mut fake = fake;
        let words = fake.command().await.expect("an XADD");
        assert_eq!(words[..4], ["XADD", "orders", "NOMKSTREAM", "*"]);
        fake.answer(&["$3", "8-0"]).await;
    };
    let (answers, ()) = tokio::join!(sink.publish(&batch[1..], soon()), server);
    assert_eq!(answers, [Answer::Acked { receipt: Some("orders@8-0".into()) }]);
}

/// The answers are those of Redis 7.2, which no test has for real.
#[tokio::test]
async fn a_batch_counts_once_its_file_is_flushed() {
    let (sink, listener) = sink_with(serde_json::json!({ "wait_aof": true, "wait_replicas": 1 })).await;
    let (hot, body) = (event("hot"), Bytes::from_static(b"x"));
    let batch = [message(&hot, "orders", &body)];
    let server = async {
        let mut fake = greeted(&listener).await;
        for (flushed, replicas) in [(":0", ":1"), (":1", ":0"), (":1", ":1")] {
            fake.command().await.expect("an XADD");
            fake.answer(&["$3", "7-0"]).await;
            let words = fake.command().await.expect("a WAITAOF");
            assert_eq!(words, ["WAITAOF", "1", "1", "1000"]);
            fake.answer(&["*2", flushed, replicas]).await;
        }
    };
    let publish = async {
        for expected in ["did not flush its append-only file within 1s", "0 of 1 replicas confirmed"] {
            let answers = sink.publish(&batch, soon()).await;
            assert!(
                matches!(&answers[0], Answer::Refused(Refusal { cause: Cause::Sink, error, .. }) if error.contains(expected)),
                "{answers:?}"
            );
        }
        assert_eq!(
            sink.publish(&batch, soon()).await,
            [Answer::Acked { receipt: Some("orders@7-0".into()) }]
        );
    };
    tokio::join!(publish, server);
}

/// Bytes that arrive after the batch was given up, to the end of the connection. The server reads nothing before.
/// Panics when the connection does not end: what the client still has would be sent on it.
async fn arrives(mut fake: Fake, given_up: impl Future<Output = ()>) -> usize {
    given_up.await;
    let mut rest = Vec::new();
    // A connection that is cut off may end in an error; what came before counts.
    let end = Instant::now() + Duration::from_secs(20);
    let _ = timeout_at(end, fake.0.read_to_end(&mut rest)).await.expect("the connection is still open");
    rest.len()
}

const BODIES: usize = 64;
const BODY_BYTES: usize = 1 << 20;

#[tokio::test]
async fn at_the_deadline_nothing_is_left_to_be_sent() {
    let (sink, listener) = sink().await;
    let events: Vec<Event> = (0..BODIES).map(|n| event(&format!("k{n}"))).collect();
    let body = Bytes::from(vec![b'x'; BODY_BYTES]);
    let batch: Vec<_> = events.iter().map(|event| message(event, "orders", &body)).collect();
    let (done, given_up) = tokio::sync::oneshot::channel();
    let publish = async {
        let answers = sink.publish(&batch, Instant::now() + Duration::from_secs(1)).await;
        done.send(()).expect("a listener");
        answers
    };
    let server = async { arrives(greeted(&listener).await, async { given_up.await.expect("done") }).await };
    let (answers, bytes) = tokio::join!(publish, server);
    let silent =
        |answer: &Answer| matches!(answer, Answer::Refused(Refusal { cause: Cause::Sink, silent: true, .. }));
    assert!(answers.iter().all(silent), "{answers:?}");
    assert!(bytes < BODIES * BODY_BYTES, "all {bytes} bytes arrived after the deadline");
}

#[tokio::test]
async fn a_batch_that_is_dropped_leaves_nothing_to_be_sent() {
    let (sink, listener) = sink().await;
    let events: Vec<Event> = (0..BODIES).map(|n| event(&format!("k{n}"))).collect();
    let body = Bytes::from(vec![b'x'; BODY_BYTES]);
    let batch: Vec<_> = events.iter().map(|event| message(event, "orders", &body)).collect();
    let mut publish = Box::pin(sink.publish(&batch, soon()));
    let fake = tokio::select! {
        fake = greeted(&listener) => fake,
        _ = &mut publish => panic!("answered before it was asked"),
    };
    // Until the sockets are full.
    let _ = timeout_at(Instant::now() + Duration::from_millis(500), &mut publish).await;
    drop(publish);
    let bytes = arrives(fake, std::future::ready(())).await;
    assert!(bytes > 0 && bytes < BODIES * BODY_BYTES, "{bytes} bytes arrived");
}
