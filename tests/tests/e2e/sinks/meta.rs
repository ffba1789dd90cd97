//! What consumers read of an event's metadata is what its row says, whatever the broker and the envelope.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use outbox_schema::NewEvent;
use outbox_tests::brokers::kafka::Kafka;
use outbox_tests::brokers::nats::Nats;
use outbox_tests::brokers::redis::Redis;
use outbox_tests::brokers::{free_port, kill, rabbitmq, wait_for_port};
use outbox_tests::process::{bound, spawn};
use processed_events::{EventMeta, MetaError};
use tempfile::TempDir;
use uuid::Uuid;

use super::{Received, consume, python, received};
use crate::stage::{Engine, Stage};

const SOON: Duration = Duration::from_secs(60);
const ENVELOPES: [&str; 3] = ["raw", "cloudevents-binary", "cloudevents-structured"];
const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Delivers events to the destination, and compares what `read` makes of each message with the rows.
struct Case<'a> {
    sink: &'a str,
    destination: &'a str,
    envelope: &'a str,
}

impl Case<'_> {
    async fn deliver(&self) -> Result<(Stage, Vec<NewEvent>)> {
        let Self { sink, destination, envelope } = self;
        let play = format!(
            "[queues.default]\nsink = \"broker\"\ndestination = \"{destination}\"\n\
             [sinks.broker]\n{sink}\nenvelope = \"{envelope}\"\n"
        );
        let mut stage = Stage::set(Engine::Sqlite, play).await?;
        let events = events();
        stage.enqueue(events.clone()).await?;
        stage.outbox(&["run", "--once"])?;
        Ok((stage, events))
    }

    async fn compare(
        &self,
        (mut stage, events): (Stage, Vec<NewEvent>),
        metas: Vec<Result<EventMeta, MetaError>>,
    ) -> Result<()> {
        let metas: Vec<EventMeta> = metas.into_iter().collect::<Result<_, _>>()?;
        ensure!(metas.len() == events.len(), "{} of {} arrived", metas.len(), events.len());
        let is_cloudevent = self.envelope != "raw";
        for (event, (event_type, content_type)) in events.iter().zip([
            (Some("Order placed"), Some("application/json")),
            (None, Some("application/octet-stream")),
            (Some("OrderDeleted"), None),
        ]) {
            let id = event.event_id();
            let meta = metas.iter().find(|meta| meta.id == id).context("an event is missing")?;
            let of_row = |column: &str| format!("SELECT {column} FROM outbox_tasks WHERE id = '{id}'");
            ensure!(meta.seq == stage.number(&of_row("seq")).await?, "{meta:?}");
            let created_ms = stage.number(&of_row("created_at")).await?;
            ensure!(meta.created_at.unix_timestamp_nanos() == i128::from(created_ms) * 1_000_000, "{meta:?}");
            ensure!(meta.queue.as_deref() == (!is_cloudevent).then_some("default"), "{meta:?}");
            ensure!(meta.aggregate_type == "Order Item" && meta.aggregate_id == AGGREGATE_ID, "{meta:?}");
            let stand_in = is_cloudevent.then_some("Order Item");
            ensure!(meta.event_type.as_deref() == event_type.or(stand_in), "{meta:?}");
            ensure!(meta.content_type.as_deref() == content_type, "{meta:?}");
            let traceparent = (event_type == Some("Order placed")).then_some(TRACE);
            ensure!(meta.traceparent.as_deref() == traceparent, "{meta:?}");
        }
        Ok(())
    }
}

/// Needs percent-encoding where there is such a thing.
const AGGREGATE_ID: &str = "7 \"a\" 100%";

fn events() -> Vec<NewEvent> {
    let event = || NewEvent::new("Order Item", AGGREGATE_ID).id(Uuid::now_v7());
    vec![
        event().event_type("Order placed").header("traceparent", TRACE).json_text("{\"id\": 1}"),
        event().bytes([0, 255]),
        event().event_type("OrderDeleted"),
    ]
}

type Constructor = fn(&Received) -> Result<EventMeta, MetaError>;

fn metas(envelope: &str, received: &[Received], binary: Constructor) -> Vec<Result<EventMeta, MetaError>> {
    let structured: Constructor = |message| {
        let body = message.body.as_deref().unwrap_or_default();
        Ok(EventMeta::from_cloudevent(body)?.with_headers(&message.headers))
    };
    let read = if envelope == "cloudevents-structured" { structured } else { binary };
    received.iter().map(read).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_kafka_records() -> Result<()> {
    let (_private, brokers) = match std::env::var("OUTBOX_TEST_KAFKA") {
        Ok(brokers) => (None, brokers),
        Err(_) => {
            let kafka = Kafka::start(1)?;
            let brokers = kafka.brokers();
            (Some(kafka), brokers)
        }
    };
    let sink = format!("type = \"kafka\"\nbrokers = \"{brokers}\"");
    for envelope in ENVELOPES {
        let topic = format!("meta-{}", Uuid::now_v7().simple());
        consume("kafka.py", &["create", &brokers, &topic, "1", "1"]).await?;
        let case = Case { sink: &sink, destination: &topic, envelope };
        let delivered = case.deliver().await?;
        let received = consume("kafka.py", &["read", &brokers, &topic]).await?;
        let metas = metas(envelope, &received, |message| EventMeta::from_kafka(&message.headers));
        case.compare(delivered, metas).await.with_context(|| envelope.to_owned())?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_rabbitmq_messages() -> Result<()> {
    let url = rabbitmq::shared().vhost().url();
    let sink = format!("type = \"rabbitmq\"\nurl = \"{url}\"");
    for envelope in ENVELOPES {
        consume("rabbitmq.py", &[&url, "queue", envelope]).await?;
        let case = Case { sink: &sink, destination: envelope, envelope };
        let delivered = case.deliver().await?;
        let received = consume("rabbitmq.py", &[&url, "consume", envelope]).await?;
        let metas = metas(envelope, &received, |message| {
            // The script shows this property among the headers.
            let content_type = message.headers.get("content-type").map(String::as_str);
            let headers = message.headers.iter().filter(|(name, _)| *name != "content-type");
            EventMeta::from_amqp(content_type, headers)
        });
        case.compare(delivered, metas).await.with_context(|| envelope.to_owned())?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_redis_entries() -> Result<()> {
    let redis = Redis::start(&[])?;
    let sink = format!("type = \"redis\"\nurl = \"redis://127.0.0.1:{}\"\ncreate = true", redis.port());
    for envelope in ENVELOPES {
        let case = Case { sink: &sink, destination: envelope, envelope };
        let delivered = case.deliver().await?;
        let received = consume("redis_streams.py", &[&redis.port().to_string(), envelope]).await?;
        let metas = metas(envelope, &received, |message| EventMeta::from_redis(&message.headers));
        case.compare(delivered, metas).await.with_context(|| envelope.to_owned())?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_nats_messages() -> Result<()> {
    let nats = Nats::start("")?;
    let sink = format!("type = \"nats\"\nurl = \"nats://127.0.0.1:{}\"", nats.port());
    for envelope in ENVELOPES {
        nats.create_stream(envelope, serde_json::json!({}))?;
        let case = Case { sink: &sink, destination: envelope, envelope };
        let delivered = case.deliver().await?;
        let received = consume("jetstream.py", &[&nats.port().to_string(), envelope]).await?;
        let metas = metas(envelope, &received, |message| EventMeta::from_nats(&message.headers));
        case.compare(delivered, metas).await.with_context(|| envelope.to_owned())?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_http_requests() -> Result<()> {
    for envelope in ENVELOPES {
        let directory = TempDir::new()?;
        fs::write(directory.path().join("rules.json"), r#"{"destinations": ["orders"]}"#)?;
        let port = free_port()?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("consume/http_receiver.py");
        let mut command = bound(python());
        command.arg(script).arg(port.to_string()).arg(directory.path()).stdin(Stdio::null());
        let mut receiver = spawn(command)?;
        wait_for_port(port, SOON)?;
        let sink =
            format!("type = \"http\"\nurl = \"http://127.0.0.1:{port}/\"\nallow_private_addresses = true");
        let case = Case { sink: &sink, destination: "orders", envelope };
        let delivered = case.deliver().await?;
        kill(&mut receiver)?;
        let log = fs::read_to_string(directory.path().join("log"))?;
        let received = log.lines().map(received).collect::<Result<Vec<_>>>()?;
        let metas = metas(envelope, &received, |message| EventMeta::from_http(&message.headers));
        case.compare(delivered, metas).await.with_context(|| envelope.to_owned())?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_the_lines_of_a_file() -> Result<()> {
    let directory = TempDir::new()?;
    let path = directory.path().join("events.jsonl");
    let sink = format!("type = \"file\"\npath = \"{}\"", path.display());
    let case = Case { sink: &sink, destination: "orders", envelope: "raw" };
    let (stage, events) = case.deliver().await?;
    let lines = fs::read(&path)?;
    let mut metas: Vec<_> = lines.split_inclusive(|&byte| byte == b'\n').map(EventMeta::from_line).collect();
    // A line has the payload's own type only where the application set it.
    for (meta, content_type) in metas.iter_mut().zip(["application/json", "application/octet-stream"]) {
        let meta = meta.as_mut().map_err(|error| error.clone())?;
        ensure!(meta.content_type.replace(content_type.to_owned()).is_none(), "{meta:?}");
    }
    case.compare((stage, events), metas).await
}
