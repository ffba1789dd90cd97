//! The rabbitmq sink against a real server.
#![allow(clippy::print_stderr)] // the figures of a run

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use outbox_schema::NewEvent;
use outbox_sinks::{Answer, Cause, Message, Sink, SinkConfig};
use outbox_store::{Event, Payload, RowRef};
use outbox_tests::brokers::rabbitmq::{MAX_MESSAGE_BYTES, RabbitMq, Vhost, shared};
use tokio::time::Instant;
use uuid::Uuid;

use super::{Broker, Received, consume, fidelity, missing, outage, play, tls};
use crate::stage::{Engine, Stage};

const WAITS: Duration = Duration::from_secs(60);

/// A virtual host, and what destinations are on it.
struct Node<'a> {
    node: &'a RabbitMq,
    vhost: Vhost,
    /// Destinations are exchanges, each with a queue of the same name; otherwise they are queues.
    exchanges: bool,
    /// Further lines of the sink.
    more: &'static str,
}

impl<'a> Node<'a> {
    fn new(node: &'a RabbitMq) -> Self {
        Self { node, vhost: node.vhost(), exchanges: false, more: "" }
    }

    async fn run(&self, arguments: &[&str]) -> Result<Vec<Received>> {
        let url = self.vhost.url();
        let mut all = vec![url.as_str()];
        all.extend(arguments);
        consume("rabbitmq.py", &all).await
    }

    /// Builds the sink itself, without a relay.
    fn direct(&self) -> Result<Arc<dyn Sink>> {
        direct(&self.vhost.url())
    }
}

fn direct(url: &str) -> Result<Arc<dyn Sink>> {
    let options = serde_json::json!({ "type": "rabbitmq", "url": url });
    let config: SinkConfig = serde_json::from_value(options)?;
    outbox_sinks::build("broker", &config).map_err(anyhow::Error::msg)
}

#[async_trait]
impl Broker for Node<'_> {
    fn sink(&self) -> String {
        format!("type = \"rabbitmq\"\nurl = \"{}\"\n{}", self.vhost.url(), self.more)
    }

    fn destination(&self, name: &str) -> String {
        if self.exchanges { format!("/exchanges/{name}/order.changed") } else { name.to_owned() }
    }

    async fn create(&self, destination: &str) -> Result<()> {
        let done = match exchange_of(destination) {
            Some(exchange) => self.run(&["exchange", exchange, exchange, "order.*"]).await?,
            None => self.run(&["queue", destination]).await?,
        };
        ensure!(done.is_empty(), "a declaration printed messages");
        Ok(())
    }

    async fn consume(&self, destination: &str) -> Result<Vec<Received>> {
        self.run(&["consume", exchange_of(destination).unwrap_or(destination)]).await
    }

    async fn kill(&self) -> Result<()> {
        self.node.kill()
    }

    async fn start_again(&self) -> Result<()> {
        tokio::task::block_in_place(|| self.node.start_again())
    }
}

fn exchange_of(destination: &str) -> Option<&str> {
    destination.strip_prefix("/exchanges/").and_then(|rest| rest.split('/').next())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_committed_arrives_as_it_was() -> Result<()> {
    fidelity::run(&Node::new(shared()), Engine::Postgres, fidelity::Limits::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_committed_arrives_as_it_was_from_sqlite() -> Result<()> {
    let node = Node { exchanges: true, ..Node::new(shared()) };
    // The exchange exists under another name than its routing key: receipts must tell both.
    fidelity::run(&Addressed(node), Engine::Sqlite, fidelity::Limits::default()).await
}

/// The same with addresses of exchanges in place of names.
struct Addressed<'a>(Node<'a>);

#[async_trait]
impl Broker for Addressed<'_> {
    fn sink(&self) -> String {
        // A bare destination is a routing key on this exchange.
        format!("{}\nexchange = \"orders\"", self.0.sink())
    }

    async fn create(&self, destination: &str) -> Result<()> {
        self.0.run(&["exchange", "orders", "orders", destination]).await.map(|_| ())
    }

    async fn consume(&self, _destination: &str) -> Result<Vec<Received>> {
        self.0.consume("orders").await
    }

    async fn kill(&self) -> Result<()> {
        self.0.kill().await
    }

    async fn start_again(&self) -> Result<()> {
        self.0.start_again().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_the_broker_is_killed() -> Result<()> {
    let node = RabbitMq::start()?;
    outage::run(&Node::new(&node), Engine::Postgres).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_exchange_holds_its_keys_alone() -> Result<()> {
    missing::run(&Node { exchanges: true, ..Node::new(shared()) }, Engine::Postgres).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_with_an_authority_of_ones_own_and_a_client_certificate() -> Result<()> {
    let node = Node::new(shared());
    let Some((url, files)) = node.node.tls(&node.vhost) else {
        outbox_tests::skip("openssl is not installed");
        return Ok(());
    };
    tls::run(&node, &format!("type = \"rabbitmq\"\nurl = \"{url}\""), files).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_is_failed_alone() -> Result<()> {
    let node = Node::new(shared());
    node.create("good").await?;
    let mut stage = Stage::set(Engine::Postgres, play(&node, "good", "")).await?;
    let poisons = [
        NewEvent::new("Order", "unroutable").json_text("{}").destination("nowhere"),
        NewEvent::new("Order", "oversize").bytes(vec![b'x'; MAX_MESSAGE_BYTES + 1]),
        NewEvent::new("Order", "long-key").json_text("{}").destination("k".repeat(256)),
        NewEvent::new("Order", "carbon-copy").json_text("{}").header("CC", "another"),
        NewEvent::new("Order", "no-address").json_text("{}").destination("/exchanges/a/b/c"),
    ];
    let keys: Vec<String> =
        ["unroutable", "oversize", "long-key", "carbon-copy", "no-address"].map(str::to_owned).to_vec();
    let good = |key: &str| NewEvent::new("Order", key).json_text("{\"good\": true}");
    let mut events: Vec<NewEvent> = (0..40).map(|n| good(&format!("innocent{}", n % 10))).collect();
    events.extend(poisons);
    events.extend(keys.iter().map(|key| good(key)));
    stage.enqueue(events).await?;
    let mut relay = stage.relay("relay")?;
    stage.until("SELECT count(*) FROM outbox_tasks WHERE settled_at IS NULL", 0, WAITS).await?;
    for (key, words) in [
        ("unroutable", "312 NO_ROUTE"),
        ("oversize", "message size"),
        ("long-key", "routing key has 256 bytes"),
        ("carbon-copy", "CC"),
        ("no-address", "%2F"),
    ] {
        let failed = format!(
            "SELECT count(*) FROM outbox_tasks WHERE status = 'FAILED' AND aggregate_id = '{key}' AND strpos(last_error, '{words}') > 0"
        );
        let found = stage.number(&failed).await?;
        ensure!(found == 1, "{key} is not FAILED with {words}: {}", relay.log());
    }
    ensure!(stage.count("FAILED").await? == 5, "more than the poison FAILED");
    ensure!(stage.count("PUBLISHED").await? == 45, "an innocent event is missing");
    ensure!(node.consume("good").await?.len() == 45, "not each innocent event came once");
    relay.terminate();
    ensure!(relay.wait(WAITS)?.success(), "SIGTERM: {}", relay.log());
    Ok(())
}

/// Nothing of the batch is routed: the destination is to blame, and everything waits for it, uncharged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unroutable_alone_waits_for_its_queue() -> Result<()> {
    let node = Node::new(shared());
    let mut stage = Stage::set(Engine::Postgres, play(&node, "late", RETRY)).await?;
    stage.insert("a", 5).await?;
    let mut relay = stage.relay("relay")?;
    stage.until("SELECT count(*) FROM outbox_blocked_keys", 1, WAITS).await?;
    ensure!(stage.number("SELECT count(*) FROM outbox_tasks WHERE retry_count > 0").await? == 0, "charged");
    let alarm = relay.log();
    ensure!(alarm.contains("/queues/late is unroutable"), "no alarm: {alarm}");
    ensure!(!alarm.contains("\\\"n\\\""), "a payload is in the log: {alarm}");
    node.create("late").await?;
    stage.until("SELECT count(*) FROM outbox_tasks WHERE status = 'PUBLISHED'", 5, WAITS).await?;
    in_order(&node.consume("late").await?, 5)?;
    relay.terminate();
    ensure!(relay.wait(WAITS)?.success(), "SIGTERM: {}", relay.log());
    Ok(())
}

const RETRY: &str =
    "retry = { initial = \"100ms\", factor = 1.5, max = \"500ms\", jitter = 0.2 }\nbatch = 20";

/// Every key's messages come in the order of their seqs.
fn in_order(received: &[Received], count: usize) -> Result<()> {
    let mut last: HashMap<&str, i64> = HashMap::new();
    for message in received {
        let key = message.key.as_deref().context("a key")?;
        let seq: i64 = message.headers.get("outbox-seq").context("a seq")?.parse()?;
        ensure!(last.insert(key, seq).is_none_or(|last| last < seq), "key {key}: {seq} came late");
    }
    ensure!(received.len() == count, "{} messages instead of {count}", received.len());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_there_is_made_when_asked() -> Result<()> {
    let node = Node { more: "create = true\nqueue_type = \"classic\"", ..Node::new(shared()) };
    let mut stage = Stage::set(Engine::Postgres, play(&node, "made", RETRY)).await?;
    let event = |n: i32| NewEvent::new("Order", format!("k{n}")).json_text("{}");
    stage.enqueue((0..10).map(event).collect()).await?;
    stage.outbox(&["run", "--once"])?;
    in_order(&node.consume("made").await?, 10)?;
    // An exchange that is made has no queue yet: its messages wait until one is bound.
    stage.enqueue(vec![event(1).destination("/exchanges/made-too/k")]).await?;
    let mut relay = stage.relay("relay")?;
    stage.until("SELECT count(*) FROM outbox_blocked_keys", 1, WAITS).await?;
    node.run(&["exchange", "made-too", "bound", "k"]).await?;
    stage.until("SELECT count(*) FROM outbox_tasks WHERE status = 'PUBLISHED'", 11, WAITS).await?;
    in_order(&node.consume("bound").await?, 1)?;
    relay.terminate();
    ensure!(relay.wait(WAITS)?.success(), "SIGTERM: {}", relay.log());
    Ok(())
}

/// A full queue nacks. Each nack is charged, and no message of its key passes the one that was refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nacks_are_charged_and_keep_the_order() -> Result<()> {
    let node = Node::new(shared());
    node.run(&["queue", "small", r#"{"x-max-length": 10, "x-overflow": "reject-publish"}"#]).await?;
    let mut stage = Stage::set(Engine::Postgres, play(&node, "small", RETRY)).await?;
    let events =
        (0..60).map(|n| NewEvent::new("Order", format!("k{}", n % 6)).json_text("{}").max_retries(1000));
    stage.enqueue(events.collect()).await?;
    let mut relay = stage.relay("relay")?;
    let charged = "SELECT count(*) FROM (SELECT FROM outbox_tasks WHERE retry_count > 0 LIMIT 1) AS found";
    stage.until(charged, 1, WAITS).await?;
    let nacked = "SELECT count(*) FROM (SELECT FROM outbox_tasks WHERE strpos(last_error, 'nack') > 0 LIMIT 1) AS found";
    ensure!(stage.number(nacked).await? == 1, "the nack is not named: {}", relay.log());
    let (mut received, end) = (Vec::new(), Instant::now() + WAITS);
    while received.len() < 60 {
        ensure!(Instant::now() < end, "{} of 60 came: {}", received.len(), relay.log());
        received.extend(node.consume("small").await?);
    }
    in_order(&received, 60)?;
    stage.until("SELECT count(*) FROM outbox_tasks WHERE status = 'PUBLISHED'", 60, WAITS).await?;
    relay.terminate();
    ensure!(relay.wait(WAITS)?.success(), "SIGTERM: {}", relay.log());
    Ok(())
}

/// Events for the sink itself, each of a key of its own.
fn events(count: usize, bytes: usize) -> Vec<Event> {
    let event = |n: usize| Event {
        id: Uuid::now_v7(),
        row: RowRef(0),
        aggregate_type: "Order".to_owned(),
        payload: Payload::Binary(vec![b'x'; bytes].into()),
        created_at: time::OffsetDateTime::now_utc(),
        ..Event::bare(i64::try_from(n).expect("few events"), format!("k{n}"))
    };
    (0..count).map(event).collect()
}

fn message<'a>(event: &'a Event, destination: &'a str) -> Message<'a> {
    Message {
        event,
        queue: "default",
        destination: Some(destination.into()),
        headers: vec![("outbox-id".into(), event.id.to_string().into())],
        body: event.payload.bytes().cloned(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_returned_message_is_never_taken_for_another() -> Result<()> {
    let node = Node::new(shared());
    node.create("good").await?;
    let sink = node.direct()?;
    let (mut routed, mut mixed_up) = (HashSet::new(), 0);
    for round in 0..200 {
        let events = events(100, 10);
        let lost = (round * 37) % 100;
        let batch: Vec<Message<'_>> =
            (0..100).map(|n| message(&events[n], if n == lost { "nowhere" } else { "good" })).collect();
        let answers = sink.publish(&batch, Instant::now() + WAITS).await;
        for (n, (event, answer)) in events.iter().zip(&answers).enumerate() {
            let right = match answer {
                Answer::Acked { receipt } => n != lost && receipt.as_deref() == Some("/queues/good"),
                Answer::Refused(refusal) => n == lost && refusal.cause == Cause::Message,
                Answer::Unsent => false,
            };
            mixed_up += usize::from(!right);
            if n != lost {
                routed.insert(event.id);
            }
        }
    }
    let received = node.consume("good").await?.iter().map(Received::id).collect::<Result<Vec<_>>>()?;
    eprintln!("200 rounds of 100 with 1 unroutable: {mixed_up} mis-attributed");
    ensure!(mixed_up == 0, "{mixed_up} answers are about another message");
    ensure!(received.len() == 200 * 99 && received.into_iter().collect::<HashSet<_>>() == routed);
    sink.close().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_write_there_is_held_and_who_may_not_log_in_is_down() -> Result<()> {
    let node = Node::new(shared());
    for exchange in ["open", "shut"] {
        node.create(&format!("/exchanges/{exchange}/order.changed")).await?;
    }
    let sink = direct(&node.vhost.url_at("limited", node.node.port()))?;
    let events = events(4, 10);
    let to = |n: usize| ["/exchanges/open/order.changed", "/exchanges/shut/order.changed"][n % 2];
    let batch: Vec<Message<'_>> = (0..4).map(|n| message(&events[n], to(n))).collect();
    let answers = sink.publish(&batch, Instant::now() + WAITS).await;
    for (n, answer) in answers.iter().enumerate() {
        let right = match answer {
            Answer::Acked { .. } => n % 2 == 0,
            Answer::Refused(refusal) => {
                n % 2 == 1
                    && refusal.cause == Cause::Destination
                    && refusal.error.contains("403 ACCESS_REFUSED")
            }
            Answer::Unsent => false,
        };
        ensure!(right, "{n}: {answer:?}");
    }
    let good = node.vhost.url();
    for (url, words) in [
        (good.replace("guest:guest", "guest:hunter2"), "ACCESS_REFUSED"),
        (format!("amqp://guest:guest@127.0.0.1:{}/no-such", node.node.port()), "no-such"),
    ] {
        let (sink, began) = (direct(&url)?, Instant::now());
        let answers = sink.publish(&batch, Instant::now() + Duration::from_secs(30)).await;
        let down =
            |answer: &Answer| matches!(answer, Answer::Refused(refusal) if refusal.cause == Cause::Sink);
        ensure!(answers.len() == 4 && answers.iter().all(down), "{answers:?}");
        ensure!(began.elapsed() < Duration::from_secs(20), "connecting has its own, shorter, time");
        let error = sink.check(Instant::now() + WAITS).await.err().context("the check sees it too")?;
        ensure!(error.contains(words) && !error.contains("hunter2"), "{error}");
    }
    let found = node.direct()?.check(Instant::now() + WAITS).await.map_err(anyhow::Error::msg)?;
    ensure!(found.contains("version 3.") || found.contains("version 4."), "{found}");
    Ok(())
}

/// A server out of memory reads nothing more. What was not sent by the deadline is not sent later either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_queued_while_the_server_blocks() -> Result<()> {
    const SENT: usize = 100;
    let server = RabbitMq::start()?;
    let node = Node::new(&server);
    node.create("good").await?;
    let sink = node.direct()?;
    let first = events(1, 10);
    let answers = sink.publish(&[message(&first[0], "good")], Instant::now() + WAITS).await;
    ensure!(answers[0].is_acked(), "{answers:?}");
    server.control(&["set_vm_memory_high_watermark", "0.0000001"])?;
    let events = events(SENT, MAX_MESSAGE_BYTES - 1000);
    let batch: Vec<Message<'_>> = events.iter().map(|event| message(event, "good")).collect();
    let answers = sink.publish(&batch, Instant::now() + Duration::from_secs(3)).await;
    let blocked =
        |answer: &Answer| matches!(answer, Answer::Refused(refusal) if refusal.cause == Cause::Sink);
    ensure!(answers.iter().all(|answer| blocked(answer) || *answer == Answer::Unsent), "{answers:?}");
    // The same where the relay gives up itself.
    let given_up = sink.publish(&batch, Instant::now() + WAITS);
    ensure!(tokio::time::timeout(Duration::from_secs(2), given_up).await.is_err(), "answered while blocked");
    server.control(&["set_vm_memory_high_watermark", "0.4"])?;
    let answers = sink.publish(&[message(&first[0], "good")], Instant::now() + WAITS).await;
    ensure!(answers[0].is_acked(), "it takes messages again: {answers:?}");
    // The server has what had reached it: its own buffers hold a few of these messages.
    let received = node.consume("good").await?.len();
    eprintln!("blocked: {received} of {} arrived", 2 * SENT + 2);
    ensure!(received < SENT / 2, "{received} messages came after their deadline");
    Ok(())
}
