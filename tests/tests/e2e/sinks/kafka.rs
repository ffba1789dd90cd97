//! The kafka sink against real servers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use async_trait::async_trait;
use outbox_schema::NewEvent;
use outbox_tests::brokers::kafka::Kafka;
use tokio::sync::OnceCell;
use uuid::Uuid;

use super::fidelity::Limits;
use super::{Broker, Received, consume, fidelity, missing, outage, play};
use crate::stage::{Engine, Stage};

const PARTITIONS: &str = "4";

/// Servers, private or of one's own.
pub(crate) struct Cluster {
    pub(crate) brokers: String,
    replicas: usize,
    /// Further lines of the sink.
    options: &'static str,
    private: Option<Kafka>,
    /// Which node is killed next.
    victim: AtomicUsize,
}

impl Cluster {
    fn private(nodes: usize) -> Result<Self> {
        let kafka = Kafka::start(nodes)?;
        Ok(Self {
            brokers: kafka.brokers(),
            replicas: nodes,
            options: "",
            private: Some(kafka),
            victim: AtomicUsize::new(0),
        })
    }

    /// One node for all tests that kill none; `OUTBOX_TEST_KAFKA=host:port` names one of your own.
    pub(crate) async fn shared() -> Result<Self> {
        static ONE: OnceCell<Kafka> = OnceCell::const_new();
        let brokers = match std::env::var("OUTBOX_TEST_KAFKA") {
            Ok(brokers) => brokers,
            Err(_) => ONE.get_or_try_init(|| async { Kafka::start(1) }).await?.brokers(),
        };
        Ok(Self { brokers, replicas: 1, options: "", private: None, victim: AtomicUsize::new(0) })
    }

    pub(crate) async fn create_with(&self, topic: &str, settings: &[&str]) -> Result<()> {
        let replicas = self.replicas.to_string();
        let mut arguments = vec!["create", &self.brokers, topic, PARTITIONS, &replicas];
        arguments.extend(settings);
        consume("kafka.py", &arguments).await?;
        Ok(())
    }

    fn private_kafka(&self) -> &Kafka {
        self.private.as_ref().expect("only private servers are killed")
    }
}

#[async_trait]
impl Broker for Cluster {
    fn sink(&self) -> String {
        format!("type = \"kafka\"\nbrokers = \"{}\"\n{}", self.brokers, self.options)
    }

    async fn create(&self, destination: &str) -> Result<()> {
        self.create_with(destination, &[]).await
    }

    async fn consume(&self, destination: &str) -> Result<Vec<Received>> {
        consume("kafka.py", &["read", &self.brokers, destination]).await
    }

    async fn kill(&self) -> Result<()> {
        let kafka = self.private_kafka();
        kafka.kill(self.victim.load(Ordering::Relaxed) % kafka.nodes())
    }

    async fn start_again(&self) -> Result<()> {
        let kafka = self.private_kafka();
        let node = self.victim.fetch_add(1, Ordering::Relaxed) % kafka.nodes();
        kafka.start_again(node)
    }
}

fn topic(name: &str) -> String {
    format!("{name}-{}", Uuid::now_v7().simple())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fidelity_on_postgres() -> Result<()> {
    fidelity::run(&Cluster::shared().await?, Engine::Postgres, Limits::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fidelity_on_sqlite() -> Result<()> {
    let compressed = Cluster { options: "compression = \"gzip\"", ..Cluster::shared().await? };
    fidelity::run(&compressed, Engine::Sqlite, Limits::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_topic_holds_its_keys_and_nobody_else() -> Result<()> {
    missing::run(&Cluster::shared().await?, Engine::Postgres).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_of_the_only_node() -> Result<()> {
    outage::run(&Cluster::private(1)?, Engine::Postgres).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_of_one_node_of_three() -> Result<()> {
    outage::run(&Cluster::private(3)?, Engine::Postgres).await
}

/// A message that the client refuses and one that the broker refuses, each among good ones of its own and other keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_oversize_message_fails_alone_and_says_why() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let topic = topic("poison");
    cluster.create_with(&topic, &["max.message.bytes=100000"]).await?;
    let mut stage = Stage::set(Engine::Postgres, play(&cluster, &topic, "")).await?;
    let sizes = |n: u32| match n {
        100 => 2_000_000,
        200 => 300_000,
        _ => 500,
    };
    let event = |n| NewEvent::new("Order", format!("k{}", n % 20)).bytes(vec![b'x'; sizes(n)]);
    stage.enqueue((0..400).map(event).collect()).await?;
    stage.outbox(&["run", "--once"])?;
    ensure!(stage.count("FAILED").await? == 2, "{} rows FAILED", stage.count("FAILED").await?);
    ensure!(stage.count("PUBLISHED").await? == 398, "{} rows PUBLISHED", stage.count("PUBLISHED").await?);
    for said in ["%2000%bytes%max_message_bytes%", "%300%bytes%max.message.bytes%"] {
        let failed =
            format!("SELECT count(*) FROM outbox_tasks WHERE status = 'FAILED' AND last_error LIKE '{said}'");
        ensure!(
            stage.number(&failed).await? == 1,
            "no row FAILED with {said}: {}",
            stage.outbox(&["failed", "list"])?
        );
    }
    ensure!(cluster.consume(&topic).await?.len() == 398, "a message came twice or not at all");
    Ok(())
}

/// Limits below `batch_size`: whole batches are refused, and only the one to blame may fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_that_a_topic_refuses_are_sent_message_by_message() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let topic = topic("narrow");
    cluster.create_with(&topic, &["max.message.bytes=5000"]).await?;
    let mut stage = Stage::set(Engine::Postgres, play(&cluster, &topic, "")).await?;
    let event =
        |n: u32| NewEvent::new("Order", format!("k{n}")).bytes(vec![b'x'; if n == 50 { 6000 } else { 500 }]);
    stage.enqueue((0..100).map(event).collect()).await?;
    stage.outbox(&["run", "--once"])?;
    ensure!(stage.count("FAILED").await? == 1, "{} rows FAILED", stage.count("FAILED").await?);
    ensure!(stage.count("PUBLISHED").await? == 99, "{} rows PUBLISHED", stage.count("PUBLISHED").await?);
    ensure!(cluster.consume(&topic).await?.len() == 99, "a message came twice or not at all");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cloudevents_as_the_kafka_binding_wants_them() -> Result<()> {
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    for (envelope, content_type) in [
        ("cloudevents-binary", "application/json"),
        ("cloudevents-structured", "application/cloudevents+json"),
    ] {
        let cluster = Cluster::shared().await?;
        let topic = topic(envelope);
        cluster.create(&topic).await?;
        let configuration = play(&cluster, &topic, "")
            .replace("type = \"kafka\"", &format!("type = \"kafka\"\nenvelope = \"{envelope}\""));
        let mut stage = Stage::set(Engine::Sqlite, configuration).await?;
        let event = NewEvent::new("Order", "101").event_type("OrderCreated").json_text("{\"n\": 1}");
        let id = Uuid::now_v7();
        stage.enqueue(vec![event.id(id).header("traceparent", trace)]).await?;
        stage.outbox(&["run", "--once"])?;
        let received = cluster.consume(&topic).await?;
        ensure!(received.len() == 1, "{} messages", received.len());
        let Received { key, headers, body, .. } = &received[0];
        ensure!(key.as_deref() == Some("101"), "key {key:?}");
        ensure!(headers["content-type"] == content_type, "{headers:?}");
        ensure!(headers["traceparent"] == trace, "{headers:?}");
        let body = body.as_deref().unwrap_or_default();
        if envelope == "cloudevents-binary" {
            ensure!(body == b"{\"n\": 1}", "{}", String::from_utf8_lossy(body));
            ensure!(headers["ce_id"] == id.to_string() && headers["ce_specversion"] == "1.0", "{headers:?}");
            ensure!(headers["ce_type"] == "OrderCreated" && headers["ce_source"] == "/Order", "{headers:?}");
            ensure!(!headers.keys().any(|name| name.starts_with("ce-")), "{headers:?}");
        } else {
            let document: serde_json::Value = serde_json::from_slice(body)?;
            ensure!(document["id"] == id.to_string() && document["data"]["n"] == 1, "{document}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_are_created_only_when_asked() -> Result<()> {
    let options = "create = true\npartitions = 3\nreplication_factor = 1";
    let cluster = Cluster { options, ..Cluster::shared().await? };
    let topic = topic("created");
    let mut stage = Stage::set(Engine::Sqlite, play(&cluster, &topic, "")).await?;
    stage.insert("a", 5).await?;
    stage.outbox(&["run", "--once"])?;
    ensure!(stage.count("PUBLISHED").await? == 5, "{} rows PUBLISHED", stage.count("PUBLISHED").await?);
    ensure!(cluster.consume(&topic).await?.len() == 5, "not five messages");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_says_what_weakens_durability() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let topic = format!("0-{}", topic("weak"));
    cluster.create_with(&topic, &["max.message.bytes=20000"]).await?;
    let stage = Stage::set(Engine::Sqlite, play(&cluster, &topic, "")).await?;
    let found = stage.outbox(&["check"])?;
    let order = format!("max.message.bytes is below `batch_size` = 65536: {topic}");
    for said in ["1 brokers", "replication factor 1: ", &topic, "min.insync.replicas is 1", &order] {
        ensure!(found.contains(said), "nothing of {said} in {found}");
    }
    Ok(())
}

/// With nobody there, a check says so and why, in good time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_says_that_no_broker_can_be_reached() -> Result<()> {
    let port = outbox_tests::brokers::free_port()?;
    let nobody = format!("type = \"kafka\"\nbrokers = \"127.0.0.1:{port}\"");
    let configuration =
        format!("[queues.default]\nsink = \"broker\"\ndestination = \"x\"\n[sinks.broker]\n{nobody}\n");
    let stage = Stage::set(Engine::Sqlite, configuration).await?;
    let began = tokio::time::Instant::now();
    let error = stage.outbox(&["check"]).err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(error.contains("no broker can be reached") && error.contains(&port.to_string()), "{error}");
    ensure!(began.elapsed() < Duration::from_secs(30), "it took {:?}", began.elapsed());
    Ok(())
}
