//! The redis sink against a real server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use outbox_schema::NewEvent;
use outbox_tests::brokers::free_port;
use outbox_tests::brokers::redis::Redis;
use outbox_tests::certificates::make_certificates;
use tempfile::TempDir;
use uuid::Uuid;

use super::{Broker, Received, consume, fidelity, missing, outage, play, tls};
use crate::stage::{Engine, Stage};

const SOON: Duration = Duration::from_secs(60);

struct Server {
    redis: Redis,
    /// Further lines of the sink.
    options: &'static str,
}

impl Server {
    fn start(settings: &[&str]) -> Result<Self> {
        Ok(Self { redis: Redis::start(settings)?, options: "" })
    }
}

#[async_trait]
impl Broker for Server {
    fn sink(&self) -> String {
        format!("type = \"redis\"\nurl = \"redis://127.0.0.1:{}\"\n{}", self.redis.port(), self.options)
    }

    async fn create(&self, destination: &str) -> Result<()> {
        self.redis.command(&format!("XGROUP CREATE {destination} readers $ MKSTREAM"))?;
        Ok(())
    }

    async fn consume(&self, destination: &str) -> Result<Vec<Received>> {
        consume("redis_streams.py", &[&self.redis.port().to_string(), destination]).await
    }

    async fn kill(&self) -> Result<()> {
        self.redis.kill()
    }

    async fn start_again(&self) -> Result<()> {
        self.redis.start_again()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_in_comes_out_on_postgres() -> Result<()> {
    fidelity::run(&Server::start(&[])?, Engine::Postgres, fidelity::Limits::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_costs_nothing_on_postgres() -> Result<()> {
    outage::run(&Server::start(&[])?, Engine::Postgres).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_stream_is_waited_for_on_sqlite() -> Result<()> {
    missing::run(&Server::start(&[])?, Engine::Sqlite).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_with_an_authority_of_ones_own_and_a_client_certificate() -> Result<()> {
    let files = TempDir::new()?;
    if !make_certificates(files.path())? {
        outbox_tests::skip("openssl is not installed");
        return Ok(());
    }
    let file = |name: &str| files.path().join(name).display().to_string();
    let (ca, cert, key) = (file("ca.crt"), file("server.crt"), file("server.key"));
    let port = free_port()?.to_string();
    let settings = [
        ["--tls-port", &port],
        ["--tls-ca-cert-file", &ca],
        ["--tls-cert-file", &cert],
        ["--tls-key-file", &key],
        ["--tls-auth-clients", "yes"],
    ];
    let server = Server::start(settings.as_flattened())?;
    let sink = format!("type = \"redis\"\nurl = \"rediss://localhost:{port}\"");
    tls::run(&server, &sink, files.path()).await
}

/// A payload longer than the server takes, a header that stands in the payload's way: each alone FAILED. A key that
/// is no stream: its events wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_poisoned_is_alone_in_it() -> Result<()> {
    let server = Server::start(&["--proto-max-bulk-len", "1mb"])?;
    server.create("orders").await?;
    server.redis.command("SET taken by-a-string")?;
    let retry = "retry = { initial = \"100ms\", factor = 2.0, max = \"1s\", jitter = 0.2 }";
    let mut stage = Stage::set(Engine::Sqlite, play(&server, "orders", retry)).await?;
    let (large, named, taken) = (Uuid::now_v7(), Uuid::now_v7(), Uuid::now_v7());
    let mut events: Vec<NewEvent> = (0..100).map(|n| event(&format!("good{}", n % 7), n)).collect();
    events.insert(50, NewEvent::new("Order", "large").id(large).bytes(vec![7; (1 << 20) + 1]));
    events.insert(30, event("named", 0).id(named).header("payload", "mine"));
    events.insert(10, event("taken", 0).id(taken).destination("taken"));
    stage.enqueue(events).await?;
    let relay = stage.relay("relay")?;
    let published = "SELECT count(*) FROM outbox_tasks WHERE status = 'PUBLISHED'";
    stage.until(published, 100, SOON).await.with_context(|| relay.log())?;
    stage.until("SELECT count(*) FROM outbox_tasks WHERE status = 'FAILED'", 2, SOON).await?;
    stage.until("SELECT count(*) FROM outbox_blocked_keys", 1, SOON).await?;
    for (id, status, charged, cause) in [
        (large, "FAILED", 1, "proto-max-bulk-len"),
        (named, "FAILED", 1, "header `payload`"),
        (taken, "PENDING", 0, "`taken` is no stream: WRONGTYPE"),
    ] {
        let row = format!(
            "SELECT count(*) FROM outbox_tasks WHERE id = '{id}' AND status = '{status}' AND
             retry_count = {charged} AND last_error LIKE '%{cause}%'"
        );
        stage.until(&row, 1, SOON).await.with_context(|| format!("{cause}: {}", relay.log()))?;
    }
    ensure!(server.consume("orders").await?.len() == 100);

    server.redis.command("DEL taken")?;
    server.create("taken").await?;
    stage.until(published, 101, SOON).await
}

fn event(key: &str, n: i64) -> NewEvent {
    NewEvent::new("Order", key).json_text(format!("{{\"n\": {n}}}"))
}

/// A run of one key is longer than one transaction; memory that runs out in the middle of it costs neither order nor
/// attempts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_is_an_outage() -> Result<()> {
    let server = Server::start(&["--maxmemory", "6mb", "--maxmemory-policy", "noeviction"])?;
    server.create("orders").await?;
    let mut stage = Stage::set(Engine::Sqlite, play(&server, "orders", "")).await?;
    let text = |n: i64| format!("{{\"n\": {n}, \"pad\": \"{}\"}}", "x".repeat(5000));
    stage.enqueue((0..3000).map(|n| event("hot", n).json_text(text(n))).collect()).await?;
    let relay = stage.relay("relay")?;
    let end = tokio::time::Instant::now() + SOON;
    while !relay.log().contains("OOM") {
        ensure!(tokio::time::Instant::now() < end, "no OOM: {}", relay.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ensure!(stage.count("FAILED").await? == 0, "a row FAILED");
    server.redis.command("CONFIG SET maxmemory 0")?;
    stage.until("SELECT count(*) FROM outbox_tasks WHERE status = 'PUBLISHED'", 3000, SOON).await?;
    ensure!(stage.number("SELECT count(*) FROM outbox_tasks WHERE retry_count > 0").await? == 0);
    let seqs = server
        .consume("orders")
        .await?
        .iter()
        .map(|message| Ok(message.headers["outbox-seq"].parse()?))
        .collect::<Result<Vec<i64>>>()?;
    ensure!(seqs.len() == 3000 && seqs.is_sorted(), "{} entries, sorted: {}", seqs.len(), seqs.is_sorted());
    Ok(())
}

/// One server is away and another is there, each with its own queue in one relay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_down_leaves_the_other_alone() -> Result<()> {
    let (down, up) = (Server::start(&[])?, Server::start(&[])?);
    for server in [&down, &up] {
        server.create("orders").await?;
    }
    down.kill().await?;
    let queue = |name: &str, server: &Server| {
        format!(
            "[queues.{name}]\nsink = \"{name}\"\ndestination = \"orders\"\n[sinks.{name}]\n{}\n",
            server.sink()
        )
    };
    let play = queue("down", &down) + &queue("up", &up);
    let mut stage = Stage::set(Engine::Sqlite, play).await?;
    let port = free_port()?;
    let relay = stage.relay_listening("relay", &format!("127.0.0.1:{port}"))?;
    for round in 0..20 {
        let of = |queue| (0..50).map(move |n| event(&format!("k{}", n % 10), round * 50 + n).queue(queue));
        stage.enqueue(of("down").chain(of("up")).collect()).await?;
    }
    let delivered =
        |queue| format!("SELECT count(*) FROM outbox_tasks WHERE queue = '{queue}' AND status = 'PUBLISHED'");
    stage.until(&delivered("up"), 1000, SOON).await.with_context(|| relay.log())?;
    ensure!(stage.number(&delivered("down")).await? == 0, "delivered to a dead server");
    let end = tokio::time::Instant::now() + SOON;
    loop {
        let ready = http_get(port, "/readyz").await?;
        if ready.starts_with("HTTP/1.1 503") && ready.contains("down") {
            break;
        }
        ensure!(tokio::time::Instant::now() < end, "readiness does not name the sink: {ready}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    down.start_again().await?;
    stage.until(&delivered("down"), 1000, SOON).await.with_context(|| relay.log())?;
    ensure!(stage.number("SELECT count(*) FROM outbox_tasks WHERE retry_count > 0").await? == 0);
    Ok(())
}

async fn http_get(port: u16, path: &str) -> Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// What needs a password, a replica or a newer server, as `outbox check` and a batch see it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_says_what_it_found() -> Result<()> {
    let server = Server::start(&["--appendfsync", "everysec", "--requirepass", "hunter2"])?;
    let check = |sink: String| async move {
        let stage = Stage::set(
            Engine::Sqlite,
            format!(
                "[queues.default]\nsink = \"broker\"\ndestination = \"orders\"\n[sinks.broker]\n{sink}\n"
            ),
        )
        .await?;
        let said = stage.outbox(&["check"]);
        anyhow::Ok(said.unwrap_or_else(|error| format!("{error:#}")))
    };
    let said = check(server.sink()).await?;
    ensure!(said.contains("WRONG") && said.contains("NOAUTH"), "{said}");
    let said = check(server.sink() + "password = \"wrong\"").await?;
    ensure!(said.contains("WRONG") && said.contains("login was refused"), "{said}");
    let said = check(server.sink() + "password = \"hunter2\"").await?;
    ensure!(said.contains("Redis ") && said.contains("appendfsync everysec"), "{said}");
    let said = check(server.sink() + "password = \"hunter2\"\nwait_replicas = 1").await?;
    ensure!(said.contains("has 0 replicas") && !said.contains("hunter2"), "{said}");
    Ok(())
}

/// A batch counts only once the replica has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_waited_for() -> Result<()> {
    let master = Server { redis: Redis::start(&[])?, options: "wait_replicas = 1\nwait_timeout = \"300ms\"" };
    master.create("orders").await?;
    let mut stage = Stage::set(Engine::Sqlite, play(&master, "orders", "")).await?;
    let relay = stage.relay("relay")?;
    stage.insert("a", 5).await?;
    let end = tokio::time::Instant::now() + SOON;
    while !relay.log().contains("0 of 1 replicas confirmed") {
        ensure!(tokio::time::Instant::now() < end, "nothing of the replica: {}", relay.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ensure!(stage.count("PUBLISHED").await? == 0, "PUBLISHED without a replica");
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &master.redis.port().to_string()])?;
    stage.until("SELECT count(*) FROM outbox_tasks WHERE status = 'PUBLISHED'", 5, SOON).await?;
    let length: i64 = replica.command("XLEN orders")?.trim_start_matches(':').parse()?;
    ensure!(length >= 5, "the replica has {length}");
    ensure!(stage.number("SELECT count(*) FROM outbox_tasks WHERE retry_count > 0").await? == 0);
    Ok(())
}
