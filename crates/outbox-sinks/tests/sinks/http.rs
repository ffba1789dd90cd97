//! The HTTP sink against a receiver that does what a test tells it to.

use std::sync::{Arc, Mutex};

use crate::common::{event, messages, soon};
use outbox_sinks::{Answer, Cause, Refusal, Sink};
use outbox_store::Event;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::{Duration, Instant, timeout};

/// What the receiver does with a request.
enum Reply {
    /// Answers with this status and these header lines.
    Status(u16, &'static str),
    /// Says nothing until the client goes.
    Silence,
    /// Closes the connection.
    Close,
}

#[derive(Default)]
struct Seen {
    /// Request lines and headers, in lower case.
    heads: Mutex<Vec<String>>,
    /// Aggregate ids, as they came.
    keys: Mutex<Vec<String>>,
    /// Keys of requests without an answer yet.
    flying: Mutex<Vec<String>>,
    /// Most requests that were ever on their way, and most of one key.
    most: Mutex<(usize, usize)>,
    /// Connections that were closed on a request without an answer.
    abandoned: Mutex<usize>,
    changed: Notify,
}

impl Seen {
    fn count(&self) -> usize {
        self.keys.lock().unwrap().len()
    }

    fn arrived(&self, key: &str) {
        self.keys.lock().unwrap().push(key.to_owned());
        let mut flying = self.flying.lock().unwrap();
        flying.push(key.to_owned());
        let of_key = flying.iter().filter(|one| *one == key).count();
        let mut most = self.most.lock().unwrap();
        *most = (most.0.max(flying.len()), most.1.max(of_key));
        self.changed.notify_waiters();
    }

    fn answered(&self, key: &str) {
        let mut flying = self.flying.lock().unwrap();
        let at = flying.iter().position(|one| one == key).unwrap();
        flying.remove(at);
    }

    async fn until(&self, what: &str, is: impl Fn(&Self) -> bool) {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                if is(self) {
                    return;
                }
                let _ = timeout(Duration::from_millis(50), changed).await;
            }
        };
        timeout(Duration::from_secs(30), wait).await.unwrap_or_else(|_| panic!("waited in vain: {what}"));
    }
}

/// Starts a receiver; `script` is asked with the event's key.
async fn receiver(script: impl Fn(&str) -> Reply + Send + Sync + 'static) -> (String, Arc<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (seen, script) = (Arc::new(Seen::default()), Arc::new(script));
    let shared = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (seen, script) = (Arc::clone(&shared), Arc::clone(&script));
            tokio::spawn(async move { serve(stream, &seen, &*script).await });
        }
    });
    (url, seen)
}

async fn serve(mut stream: TcpStream, seen: &Seen, script: &impl Fn(&str) -> Reply) {
    let mut buffer = Vec::new();
    while let Some((head, key)) = read_request(&mut stream, &mut buffer).await {
        seen.heads.lock().unwrap().push(head);
        seen.arrived(&key);
        match script(&key) {
            Reply::Close => return,
            Reply::Silence => {
                let _ = stream.read(&mut [0]).await;
                *seen.abandoned.lock().unwrap() += 1;
                seen.changed.notify_waiters();
                return;
            }
            Reply::Status(status, headers) => {
                // Time for a request to come that should have waited.
                tokio::time::sleep(Duration::from_millis(2)).await;
                seen.answered(&key);
                let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\n{headers}\r\nok");
                if stream.write_all(head.as_bytes()).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Reads a request and returns its head and its event's key, which is its body.
async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<(String, String)> {
    loop {
        if let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).to_lowercase();
            let length =
                head.lines().find_map(|line| line.strip_prefix("content-length: "))?.parse::<usize>().ok()?;
            if buffer.len() >= end + 4 + length {
                let body = buffer[end + 4..end + 4 + length].to_vec();
                buffer.drain(..end + 4 + length);
                return Some((head, String::from_utf8(body).ok()?));
            }
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
}

fn sink(url: &str, more: &str) -> Arc<dyn Sink> {
    let json = format!(r#"{{"type": "http", "url": "{url}", "allow_private_addresses": true{more}}}"#);
    outbox_sinks::build("hook", &serde_json::from_str(&json).unwrap()).unwrap()
}

/// Events whose keys and bodies are these.
fn events(keys: &[&'static str]) -> Vec<Event> {
    (1..).zip(keys).map(|(seq, key)| event(seq, key, key)).collect()
}

fn acked() -> Answer {
    Answer::Acked { receipt: Some("200".to_owned()) }
}

#[track_caller]
fn refusal(answer: &Answer) -> &Refusal {
    match answer {
        Answer::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_event_is_answered_for_and_a_key_has_one_on_its_way() {
    let (url, seen) = receiver(|key| Reply::Status(if key == "b" { 422 } else { 200 }, "")).await;
    let events = events(&["a", "b", "a", "b", "c", "a"]);
    let answers = sink(&url, "").publish(&messages(&events), soon()).await;
    let refused = refusal(&answers[1]);
    assert_eq!((refused.cause, refused.error.as_str()), (Cause::Message, "HTTP 422 Unprocessable Entity"));
    for index in [0, 2, 4, 5] {
        assert_eq!(answers[index], acked(), "{index}");
    }
    assert_eq!(answers[3], Answer::Unsent, "the rest of its key");
    assert_eq!(seen.count(), 5);
    assert_eq!(seen.most.lock().unwrap().1, 1, "two of a key");
}

#[tokio::test]
async fn a_server_error_is_the_message_s_only_while_others_are_accepted() {
    let (url, _) = receiver(|key| Reply::Status(if key == "poison" { 500 } else { 200 }, "")).await;
    let sink = sink(&url, r#", "concurrency": 1"#);
    let later = events(&["poison", "a"]);
    let answers = sink.publish(&messages(&later), soon()).await;
    assert_eq!(refusal(&answers[0]).cause, Cause::Unclear);
    assert_eq!(answers[1], acked());

    let last = events(&["a", "poison"]);
    let answers = sink.publish(&messages(&last), soon()).await;
    assert_eq!(answers[0], acked());
    assert_eq!(refusal(&answers[1]).cause, Cause::Sink, "nobody was accepted after it");

    let alone = events(&["poison", "poison"]);
    let answers = sink.publish(&messages(&alone), soon()).await;
    assert_eq!(refusal(&answers[0]).cause, Cause::Sink);
    assert!(refusal(&answers[0]).silent, "the probe must be able to make room for other keys");
    assert_eq!(answers[1], Answer::Unsent);
}

#[tokio::test]
async fn a_receiver_that_wants_to_be_left_alone_is_left_alone() {
    let (url, seen) = receiver(|_| Reply::Status(429, "retry-after: 7\r\n")).await;
    let events = events(&["a", "b", "c", "d"]);
    let answers = sink(&url, r#", "concurrency": 1"#).publish(&messages(&events), soon()).await;
    let refused = refusal(&answers[0]);
    assert_eq!((refused.cause, refused.retry_after), (Cause::Sink, Some(Duration::from_secs(7))));
    assert_eq!(answers[1..], [Answer::Unsent, Answer::Unsent, Answer::Unsent]);
    assert_eq!(seen.count(), 1);
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let (url, seen) = receiver(|_| Reply::Status(307, "location: /elsewhere\r\n")).await;
    let answers = sink(&url, "").publish(&messages(&events(&["a"])), soon()).await;
    let refused = refusal(&answers[0]);
    assert_eq!(refused.cause, Cause::Destination);
    assert!(refused.error.contains("307") && refused.error.contains("`url`"), "{}", refused.error);
    assert_eq!(seen.count(), 1);
}

#[tokio::test]
async fn a_receiver_that_is_not_there_is_down() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let sink = sink(&format!("http://127.0.0.1:{port}/hook?key=hunter2"), r#", "concurrency": 1"#);
    let answers = sink.publish(&messages(&events(&["a", "b"])), soon()).await;
    let refused = refusal(&answers[0]);
    assert_eq!((refused.cause, refused.silent), (Cause::Sink, false));
    let origin = format!("cannot connect to http://127.0.0.1:{port}");
    assert!(refused.error.contains(&origin) && refused.error.contains("refused"), "{}", refused.error);
    assert!(!refused.error.contains("hunter2"), "{}", refused.error);
    assert_eq!(answers[1], Answer::Unsent);
    assert!(sink.check(soon()).await.unwrap_err().contains(&origin));
}

#[tokio::test]
async fn a_lost_connection_is_the_sink_s_and_the_others_are_tried_all_the_same() {
    let (url, seen) = receiver(|key| if key == "a" { Reply::Close } else { Reply::Status(200, "") }).await;
    let answers = sink(&url, r#", "concurrency": 1"#).publish(&messages(&events(&["a", "b"])), soon()).await;
    let refused = refusal(&answers[0]);
    assert_eq!((refused.cause, refused.silent), (Cause::Sink, true), "{}", refused.error);
    assert!(refused.error.contains("connection is lost"), "{}", refused.error);
    assert_eq!(answers[1], acked());
    assert_eq!(seen.count(), 2, "nothing is sent twice");
}

#[tokio::test]
async fn a_response_that_takes_too_long_is_silence() {
    let (url, seen) = receiver(|key| if key == "a" { Reply::Silence } else { Reply::Status(200, "") }).await;
    let sink = sink(&url, r#", "concurrency": 1, "request_timeout": "200ms""#);
    let answers = sink.publish(&messages(&events(&["a", "b"])), soon()).await;
    let refused = refusal(&answers[0]);
    assert_eq!((refused.cause, refused.silent), (Cause::Unclear, true));
    assert!(refused.error.contains("request_timeout"), "{}", refused.error);
    assert_eq!(answers[1], acked());
    let answers = sink.publish(&messages(&events(&["a"])), soon()).await;
    assert_eq!(refusal(&answers[0]).cause, Cause::Sink);
    seen.until("both connections are given up", |seen| *seen.abandoned.lock().unwrap() == 2).await;
}

#[tokio::test]
async fn nothing_is_sent_after_the_deadline() {
    let (url, seen) = receiver(|_| Reply::Silence).await;
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let sink = sink(&url, r#", "concurrency": 2"#);
    let deadline = Instant::now() + Duration::from_millis(300);
    let answers = sink.publish(&messages(&events(&keys)), deadline).await;
    assert_eq!(answers[..2], [Answer::silence(Cause::Sink), Answer::silence(Cause::Sink)]);
    assert!(answers[2..].iter().all(|answer| *answer == Answer::Unsent), "{answers:?}");
    let answers = sink.publish(&messages(&events(&keys)), deadline).await;
    assert!(answers.iter().all(|answer| *answer == Answer::Unsent));
    seen.until("both requests are given up", |seen| *seen.abandoned.lock().unwrap() == 2).await;
    assert_eq!(seen.count(), 2);
}

#[tokio::test]
async fn a_dropped_batch_sends_nothing_more() {
    let (url, seen) = receiver(|_| Reply::Silence).await;
    let events = events(&["a", "b", "c", "d", "e", "f", "g", "h"]);
    let sink = sink(&url, r#", "concurrency": 4"#);
    let batch = messages(&events);
    tokio::select! {
        _ = sink.publish(&batch, soon()) => panic!("nobody answers"),
        () = seen.until("four requests", |seen| seen.count() == 4) => {}
    }
    seen.until("all are given up", |seen| *seen.abandoned.lock().unwrap() == 4).await;
    assert_eq!(seen.count(), 4);
}

#[tokio::test]
async fn concurrency_is_the_sink_s_and_not_each_batch_s() {
    let (url, seen) = receiver(|_| Reply::Status(200, "")).await;
    let sink = sink(&url, r#", "concurrency": 2"#);
    let (left, right) = (events(&["a", "b", "c", "d"]), events(&["e", "f", "g", "h"]));
    let (left, right) = (messages(&left), messages(&right));
    let (left, right) = tokio::join!(sink.publish(&left, soon()), sink.publish(&right, soon()));
    assert!(left.iter().chain(&right).all(Answer::is_acked));
    assert!(seen.most.lock().unwrap().0 <= 2, "{:?}", seen.most);
}

fn behind_a_proxy(url: &str, proxy: &str) -> Arc<dyn Sink> {
    let json = format!(r#"{{"type": "http", "url": "{url}", "proxy": "{proxy}"}}"#);
    outbox_sinks::build("hook", &serde_json::from_str(&json).unwrap()).unwrap()
}

/// The name is the proxy's to look up: nobody else could.
#[tokio::test]
async fn a_proxy_is_asked_for_the_whole_url_and_told_who_asks() {
    let (url, seen) = receiver(|_| Reply::Status(200, "")).await;
    let proxy = url.replace("http://", "http://user:hunter2@").replace("/hook", "");
    let sink = behind_a_proxy("http://receiver.invalid/hook?room=7", &proxy);
    let events = events(&["a", "b"]);
    assert_eq!(sink.publish(&messages(&events), soon()).await, [acked(), acked()]);
    for head in seen.heads.lock().unwrap().iter() {
        assert!(head.starts_with("post http://receiver.invalid/hook?room=7 http/1.1\r\n"), "{head}");
        assert!(
            head.contains("host: receiver.invalid") && head.contains("proxy-authorization: basic "),
            "{head}"
        );
    }
    assert_eq!(seen.count(), 2);
}

#[tokio::test]
async fn a_proxy_that_leads_nowhere_is_the_sink_s_fault() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = format!("http://user:hunter2@{}", listener.local_addr().unwrap());
    let answers = tokio::spawn(async move {
        let mut heads = Vec::new();
        for answer in ["HTTP/1.1 407 Proxy Authentication Required", "HTTP/1.1 502 Bad Gateway"] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut head).await.unwrap();
            }
            heads.push(String::from_utf8(head).unwrap());
            stream.write_all(format!("{answer}\r\ncontent-length: 0\r\n\r\n").as_bytes()).await.unwrap();
        }
        heads
    });
    let sink = behind_a_proxy("https://receiver.invalid/hook", &proxy);
    let events = events(&["a"]);
    for _ in 0..2 {
        let answers = sink.publish(&messages(&events), soon()).await;
        let refused = refusal(&answers[0]);
        assert_eq!((refused.cause, refused.silent), (Cause::Sink, false), "{}", refused.error);
        assert!(refused.error.contains("https://receiver.invalid"), "{}", refused.error);
        assert!(refused.error.contains("prox") || refused.error.contains("tunnel"), "{}", refused.error);
        assert!(!refused.error.contains("hunter2"), "{}", refused.error);
    }
    for head in answers.await.unwrap() {
        assert!(head.starts_with("CONNECT receiver.invalid:443 HTTP/1.1\r\n"), "{head}");
    }
}

#[tokio::test]
async fn a_private_address_needs_permission() {
    for url in [
        "http://127.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://[::1]/",
        "http://localhost:8080/",
    ] {
        let config = serde_json::from_str(&format!(r#"{{"type": "http", "url": "{url}"}}"#)).unwrap();
        let error = outbox_sinks::build("hook", &config).err().expect(url);
        assert!(
            error.starts_with("sinks.hook: `url`") && error.contains("allow_private_addresses"),
            "{error}"
        );
    }
}

#[test]
fn options_that_cannot_be_used_are_named() {
    for (options, says) in [
        (r#""url": "example.com""#, "https://host/path"),
        (r#""url": "ftp://example.com""#, "`ftp`"),
        (r#""url": "https://example.com", "concurrency": 0"#, "`concurrency` = 0"),
        (r#""url": "https://example.com", "request_timeout": "0s""#, "`request_timeout`"),
        (r#""url": "https://example.com", "proxy": "socks5://x:1""#, "`proxy`"),
        (r#""url": "http://example.com", "ca_file": "/nowhere.pem""#, "`ca_file`"),
        (r#""url": "https://example.com", "cert_file": "/nowhere.pem""#, "`key_file`"),
        (r#""url": "https://example.com", "signing_secret": "x""#, "whsec_"),
    ] {
        let config = serde_json::from_str(&format!(r#"{{"type": "http", {options}}}"#)).unwrap();
        let error = outbox_sinks::build("hook", &config).err().expect(options);
        assert!(error.starts_with("sinks.hook: ") && error.contains(says), "{error}");
    }
    let unknown =
        serde_json::from_str::<outbox_sinks::SinkConfig>(r#"{"type": "http", "url": "x", "timeout": "1s"}"#);
    assert!(unknown.unwrap_err().to_string().contains("`request_timeout`"));
}

#[tokio::test]
async fn check_says_what_it_finds() {
    let (url, _) = receiver(|_| Reply::Status(200, "")).await;
    // The receiver does not know HEAD, so it closes: the sink must say so rather than wait.
    let found = sink(&url, "").check(soon()).await.unwrap_err();
    assert!(found.contains("connection is lost"), "{found}");
}
