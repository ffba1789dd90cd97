//! The nats sink against a real server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use outbox_schema::NewEvent;
use outbox_tests::brokers::nats::Nats;
use outbox_tests::certificates::make_certificates;
use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

use super::{Broker, Received, consume, fidelity, missing, outage, play, tls};
use crate::stage::{Engine, Stage};

const SOON: Duration = Duration::from_secs(60);
const PUBLISHED: &str = "SELECT count(*) FROM outbox_tasks WHERE status = 'PUBLISHED'";

struct Server {
    nats: Nats,
    /// Further lines of the sink.
    options: &'static str,
}

impl Server {
    fn start(settings: &str) -> Result<Self> {
        Ok(Self { nats: Nats::start(settings)?, options: "" })
    }
}

#[async_trait]
impl Broker for Server {
    fn sink(&self) -> String {
        format!("type = \"nats\"\nurl = \"nats://127.0.0.1:{}\"\n{}\n", self.nats.port(), self.options)
    }

    async fn create(&self, destination: &str) -> Result<()> {
        self.nats.create_stream(destination, Value::Null)
    }

    async fn consume(&self, destination: &str) -> Result<Vec<Received>> {
        consume("jetstream.py", &[&self.nats.port().to_string(), destination]).await
    }

    async fn kill(&self) -> Result<()> {
        self.nats.kill()
    }

    async fn start_again(&self) -> Result<()> {
        self.nats.start_again()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_in_comes_out_on_sqlite() -> Result<()> {
    let limits = fidelity::Limits { tombstone_is_empty: true };
    fidelity::run(&Server::start("")?, Engine::Sqlite, limits).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_costs_nothing_on_sqlite() -> Result<()> {
    outage::run(&Server::start("")?, Engine::Sqlite).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_stream_is_waited_for_on_postgres() -> Result<()> {
    missing::run(&Server::start("")?, Engine::Postgres).await
}

/// The test's own client and the consumer come without TLS, to the same port.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_with_an_authority_of_ones_own_and_a_client_certificate() -> Result<()> {
    let files = TempDir::new()?;
    if !make_certificates(files.path())? {
        outbox_tests::skip("openssl is not installed");
        return Ok(());
    }
    let file = |name: &str| files.path().join(name).display().to_string();
    let (ca, cert, key) = (file("ca.crt"), file("server.crt"), file("server.key"));
    let server = Server::start(&format!(
        "tls {{ ca_file: \"{ca}\", cert_file: \"{cert}\", key_file: \"{key}\", verify: true }}\nallow_non_tls: true"
    ))?;
    let sink = format!("type = \"nats\"\nurl = \"tls://localhost:{}\"", server.nats.port());
    tls::run(&server, &sink, files.path()).await
}

fn event(key: &str, n: i64) -> NewEvent {
    NewEvent::new("Order", key).json_text(format!("{{\"n\": {n}}}"))
}

/// A line break in a header, an order to the server in one, a subject that is none, a message larger than the server
/// or the stream takes: each alone FAILED, and everything else delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_poisoned_is_alone_in_it() -> Result<()> {
    let server = Server::start("max_payload: 65536")?;
    server.create("orders").await?;
    server.nats.create_stream("small", json!({"max_msg_size": 1000}))?;
    let mut stage = Stage::set(Engine::Sqlite, play(&server, "orders", "")).await?;
    let bytes = |length| NewEvent::new("Order", "bytes").bytes(vec![7; length]);
    let poison = [
        (event("c", 0).header("Nats-Rollup", "all"), "header `Nats-Rollup`"),
        (event("d", 0).destination("orders created"), "white space"),
        (event("e", 0).destination("orders.*"), "without wildcards"),
        (bytes(70_000), "Payload size limit of 65536"),
        (bytes(2000).destination("small"), "message size exceeds maximum allowed"),
    ];
    let mut events: Vec<NewEvent> = (0..100).map(|n| event(&format!("good{}", n % 7), n)).collect();
    let mut causes: Vec<(Uuid, &str)> = Vec::new();
    for (n, (poisoned, cause)) in poison.into_iter().enumerate() {
        let id = Uuid::now_v7();
        causes.push((id, cause));
        events.insert(10 * n + 5, poisoned.id(id));
    }
    stage.enqueue(events).await?;
    // The library refuses such a header; plain SQL does not.
    for (key, header, cause) in [("a", "a\\r\\nb", "header `tenant`"), ("b", "a\\nb", "line break")] {
        let id = Uuid::now_v7();
        causes.push((id, cause));
        stage
            .execute(&format!(
                "INSERT INTO outbox_tasks (id, aggregate_type, aggregate_id, payload, headers)
                 VALUES ('{id}', 'Order', '{key}', '{{}}', '{{\"tenant\": \"{header}\"}}')"
            ))
            .await?;
    }
    let relay = stage.relay("relay")?;
    stage
        .until("SELECT count(*) FROM outbox_tasks WHERE settled_at IS NULL", 0, SOON)
        .await
        .with_context(|| relay.log())?;
    ensure!(stage.count("PUBLISHED").await? == 100 && stage.count("FAILED").await? == causes.len() as i64);
    for (id, cause) in causes {
        let row = format!(
            "SELECT count(*) FROM outbox_tasks WHERE id = '{id}' AND status = 'FAILED' AND last_error LIKE '%{cause}%'"
        );
        ensure!(stage.number(&row).await? == 1, "{cause}: {}", relay.log());
    }
    ensure!(server.consume("orders").await?.len() == 100);
    Ok(())
}

/// A user that may publish to some subjects only, a stream that is full: their events wait, the others go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_subject_and_a_full_stream_are_waited_for() -> Result<()> {
    let users = "authorization { users: [
        { user: admin, password: admin }
        { user: relay, password: hunter2, permissions: { publish: { deny: [\"closed\"] } } }
    ] }\nno_auth_user: admin";
    let mut server = Server::start(users)?;
    server.options = "username = \"relay\"\npassword = \"hunter2\"";
    for name in ["orders", "closed"] {
        server.create(name).await?;
    }
    server.nats.create_stream("full", json!({"max_msgs": 1, "discard": "new"}))?;
    let retry = "retry = { initial = \"200ms\", factor = 2.0, max = \"1s\", jitter = 0.2 }\npublish_timeout = \"10s\"";
    let mut stage = Stage::set(Engine::Sqlite, play(&server, "orders", retry)).await?;
    let events = (0..30).flat_map(|n| {
        let key = format!("{}", n % 3);
        [
            event(&format!("good{key}"), n),
            event("closed", n).destination("closed"),
            event("full", n).destination("full"),
        ]
    });
    stage.enqueue(events.collect()).await?;
    let relay = stage.relay("relay")?;
    stage.until(PUBLISHED, 31, SOON).await.with_context(|| relay.log())?;
    stage.until("SELECT count(*) FROM outbox_blocked_keys", 2, SOON).await?;
    for cause in ["may not publish to subject `closed`", "maximum messages exceeded"] {
        let held = format!(
            "SELECT count(*) FROM outbox_tasks WHERE status = 'PENDING' AND last_error LIKE '%{cause}%'"
        );
        stage.until(&held, 1, SOON).await.with_context(|| relay.log())?;
    }
    let touched = "SELECT count(*) FROM outbox_tasks WHERE status = 'FAILED' OR retry_count > 0";
    ensure!(stage.number(touched).await? == 0, "{}", relay.log());
    Ok(())
}

/// `create = true` makes the stream, with the subjects that were named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_is_made_when_asked_for() -> Result<()> {
    let mut server = Server::start("")?;
    server.options = "create = true\nstream = \"ORDERS\"\nsubjects = \"orders.>, returns\"\nmax_age = \"1h\"";
    let mut stage = Stage::set(Engine::Sqlite, play(&server, "orders.created", "")).await?;
    // Many at once find it missing; all of them find it made.
    stage.enqueue((0..300).map(|n| event(&format!("k{n}"), n)).collect()).await?;
    stage.outbox(&["run", "--once"])?;
    ensure!(stage.count("PUBLISHED").await? == 300, "{} are PUBLISHED", stage.count("PUBLISHED").await?);
    ensure!(server.consume("ORDERS").await?.len() == 300);
    let info = server.nats.stream_info("ORDERS")?;
    ensure!(info["config"]["subjects"] == json!(["orders.>", "returns"]), "{info}");
    ensure!(info["config"]["max_age"] == json!(3_600_000_000_000_u64), "{info}");
    Ok(())
}

/// A server that keeps its connections and stops answering: at the deadline the batch is given up, nothing of it is
/// written later, and no row is charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_sent_after_the_deadline() -> Result<()> {
    let server = Server::start("")?;
    server.create("orders").await?;
    let queue = "lease = \"6s\"\npublish_timeout = \"2s\"\nbatch = 2000";
    let mut stage = Stage::set(Engine::Sqlite, play(&server, "orders", queue)).await?;
    let relay = stage.relay("relay")?;
    stage.insert("first", 1).await?;
    stage.until(PUBLISHED, 1, SOON).await.with_context(|| relay.log())?;

    server.nats.pause()?;
    // More than the sockets hold: most of it is still in the relay at the deadline.
    let body = "x".repeat(20_000);
    let events = (0..600).map(|n| event(&format!("k{n}"), n).json_text(format!("{{\"pad\": \"{body}\"}}")));
    stage.enqueue(events.collect()).await?;
    let end = tokio::time::Instant::now() + SOON;
    while !relay.log().contains("the sink is down") {
        ensure!(tokio::time::Instant::now() < end, "no outage: {}", relay.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    stage.execute("UPDATE outbox_queues SET paused = 1").await?;
    stage.until("SELECT count(*) FROM outbox_claims", 0, SOON).await?;
    server.nats.resume()?;
    // What was in the sockets may arrive; what the relay still had may not. The stream has settled when a message that
    // is sent after it is there.
    let stored = settled(&server.nats).await?;
    ensure!(stored < 600, "all {stored} were sent after the deadline");
    stage.execute("UPDATE outbox_queues SET paused = 0").await?;
    stage.until(PUBLISHED, 601, SOON).await.with_context(|| relay.log())?;
    let charged =
        "SELECT count(*) FROM outbox_tasks WHERE retry_count > 0 OR lost_count > 0 OR status = 'FAILED'";
    ensure!(stage.number(charged).await? == 0, "a row was charged");
    // The stream tells repetitions by their ids.
    ensure!(server.consume("orders").await?.len() == 601);
    Ok(())
}

/// How many messages the stream has once that number no longer grows.
async fn settled(nats: &Nats) -> Result<u64> {
    let count = || nats.stream_info("orders").map(|info| info["state"]["messages"].as_u64().unwrap_or(0));
    let (mut last, mut same) = (count()?, 0);
    while same < 10 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = count()?;
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    Ok(last)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_says_what_it_found() -> Result<()> {
    let server = Server::start("authorization { user: relay, password: hunter2 }")?;
    let check = |sink: String| async move {
        let queue = "[queues.default]\nsink = \"broker\"\ndestination = \"orders\"";
        let stage = Stage::set(Engine::Sqlite, format!("{queue}\n[sinks.broker]\n{sink}\n")).await?;
        anyhow::Ok(stage.outbox(&["check"]).unwrap_or_else(|error| format!("{error:#}")))
    };
    let said = check(server.sink()).await?;
    ensure!(said.contains("WRONG") && said.contains("authorization violation"), "{said}");
    let said = check(server.sink() + "username = \"relay\"\npassword = \"hunter2\"").await?;
    ensure!(said.contains("JetStream with 0 streams") && !said.contains("hunter2"), "{said}");
    Ok(())
}
