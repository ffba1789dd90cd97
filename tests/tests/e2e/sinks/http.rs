//! The http sink against a receiver of another language's standard library, in a process of its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use outbox_schema::NewEvent;
use outbox_tests::brokers::{free_port, kill, wait_for_port};
use outbox_tests::certificates::make_certificates;
use outbox_tests::process::{bound, spawn};
use serde::Serialize;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use uuid::Uuid;

use super::{Broker, Received, fidelity, missing, outage, play, python, received, tls};
use crate::stage::{Engine, Stage};

const SOON: Duration = Duration::from_secs(60);
const PUBLISHED: &str = "SELECT count(*) FROM outbox_tasks WHERE status = 'PUBLISHED'";
const CHARGED: &str = "SELECT count(*) FROM outbox_tasks WHERE retry_count > 0";
const QUICK_RETRY: &str = "retry = { initial = \"100ms\", factor = 2.0, max = \"1s\", jitter = 0.2 }";

/// What the receiver does not accept.
#[derive(Clone, Debug, Default, Serialize)]
struct Rules {
    destinations: Vec<String>,
    secrets: Vec<String>,
    /// Status and headers of the answer, by aggregate id.
    failures: BTreeMap<String, (u16, BTreeMap<String, String>)>,
}

/// One request, as the receiver saw it.
struct Attempt {
    id: Uuid,
    status: u16,
    seconds: f64,
}

struct Receiver {
    port: u16,
    directory: TempDir,
    child: Mutex<Child>,
    rules: Mutex<Rules>,
    /// Further lines of `[sinks.broker]`.
    options: String,
}

impl Receiver {
    /// Starts one that accepts what goes to the destination `orders`.
    fn start(options: &str) -> Result<Self> {
        Self::start_in(TempDir::new()?, options)
    }

    fn start_in(directory: TempDir, options: &str) -> Result<Self> {
        let rules = Rules { destinations: vec!["orders".to_owned()], ..Rules::default() };
        write_rules(directory.path(), &rules)?;
        let port = free_port()?;
        let child = Mutex::new(run(port, directory.path())?);
        wait_for_port(port, SOON)?;
        Ok(Self { port, directory, child, rules: Mutex::new(rules), options: options.to_owned() })
    }

    fn change(&self, change: impl FnOnce(&mut Rules)) -> Result<()> {
        let mut rules = self.rules.lock().expect("rules");
        change(&mut rules);
        write_rules(self.directory.path(), &rules)
    }

    fn fail(&self, key: &str, status: u16, headers: &[(&str, &str)]) -> Result<()> {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.change(|rules| drop(rules.failures.insert(key.to_owned(), (status, headers))))
    }

    fn attempts(&self) -> Result<Vec<Attempt>> {
        let text = fs::read_to_string(self.directory.path().join("attempts"))?;
        let attempt = |line: &str| {
            let mut words = line.split(' ');
            let mut word = || words.next().context("ID STATUS SECONDS");
            Ok(Attempt { id: word()?.parse()?, status: word()?.parse()?, seconds: word()?.parse()? })
        };
        text.lines().map(attempt).collect()
    }

    /// Everything it accepted, in the order of arrival.
    fn accepted(&self) -> Result<Vec<Received>> {
        fs::read_to_string(self.directory.path().join("log"))?.lines().map(received).collect()
    }
}

fn run(port: u16, directory: &Path) -> Result<Child> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("consume/http_receiver.py");
    let mut command: Command = bound(python());
    command.arg(script).arg(port.to_string()).arg(directory).stdin(Stdio::null());
    spawn(command).context("cannot start the receiver")
}

/// Replaced as a whole, so that the receiver never reads half of them.
fn write_rules(directory: &Path, rules: &Rules) -> Result<()> {
    let new = directory.join("rules.new");
    fs::write(&new, serde_json::to_vec(rules)?)?;
    Ok(fs::rename(new, directory.join("rules.json"))?)
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = kill(self.child.get_mut().expect("the receiver"));
    }
}

#[async_trait]
impl Broker for Receiver {
    fn sink(&self) -> String {
        let (port, options) = (self.port, &self.options);
        format!(
            "type = \"http\"\nurl = \"http://127.0.0.1:{port}/events?key=hunter2\"\nallow_private_addresses = true\n{options}"
        )
    }

    async fn create(&self, destination: &str) -> Result<()> {
        self.change(|rules| rules.destinations.push(destination.to_owned()))
    }

    async fn consume(&self, destination: &str) -> Result<Vec<Received>> {
        let there =
            |one: &Received| one.headers.get("outbox-destination").is_some_and(|name| name == destination);
        Ok(self.accepted()?.into_iter().filter(there).collect())
    }

    async fn kill(&self) -> Result<()> {
        kill(&mut self.child.lock().expect("the receiver"))
    }

    async fn start_again(&self) -> Result<()> {
        *self.child.lock().expect("the receiver") = run(self.port, self.directory.path())?;
        wait_for_port(self.port, SOON)
    }
}

fn order(key: &str, n: usize) -> NewEvent {
    NewEvent::new("Order", key).event_type("Changed").json_text(format!("{{\"n\": {n}}}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_committed_is_what_arrives() -> Result<()> {
    fidelity::run(&Receiver::start("")?, Engine::Sqlite, fidelity::Limits::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_loses_nothing_and_charges_nobody() -> Result<()> {
    outage::run(&Receiver::start("")?, Engine::Postgres).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destination_that_is_404_waits_until_it_is_there() -> Result<()> {
    missing::run(&Receiver::start("")?, Engine::Sqlite).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_fails_alone_and_says_why() -> Result<()> {
    let receiver = Receiver::start("")?;
    for (key, status) in [("k400", 400), ("k410", 410), ("k413", 413)] {
        receiver.fail(key, status, &[])?;
    }
    let mut stage = Stage::set(Engine::Postgres, play(&receiver, "orders", "")).await?;
    let good = |key: usize| order(&format!("good{key}"), key);
    stage.enqueue((0..50).map(good).collect()).await?;
    stage.enqueue(["k400", "k410", "k413"].map(|key| order(key, 0)).to_vec()).await?;
    for (key, headers) in [("crlf", r#"{"tenant": "a\r\nhost: evil"}"#), ("name", r#"{"te nant": "a"}"#)] {
        stage
            .execute(&format!(
                "INSERT INTO outbox_tasks (id, aggregate_type, aggregate_id, headers, payload)
                 VALUES ('{}', 'Order', '{key}', '{headers}', '{{}}')",
                Uuid::now_v7()
            ))
            .await?;
    }
    stage.enqueue((50..100).map(good).collect()).await?;
    stage.outbox(&["run", "--once"])?;
    ensure!(stage.number(PUBLISHED).await? == 100, "the others are not delivered");
    ensure!(stage.count("FAILED").await? == 5, "not five FAILED rows");
    for (key, error) in [
        ("k400", "HTTP 400 Bad Request"),
        ("k410", "HTTP 410 Gone"),
        ("k413", "HTTP 413 Payload Too Large"),
        ("crlf", "header \"tenant\" has the control character 0x0d in its value, which HTTP does not allow"),
        ("name", "header \"te nant\" has a name that HTTP does not allow%"),
    ] {
        let found = format!(
            "SELECT count(*) FROM outbox_tasks WHERE status = 'FAILED' AND aggregate_id = '{key}'
             AND last_error LIKE '{error}'"
        );
        ensure!(
            stage.number(&found).await? == 1,
            "{key} does not say {error}: {}",
            stage.outbox(&["failed", "list"])?
        );
    }
    Ok(())
}

/// 500 for one key while the others are accepted: it alone is charged, and FAILED in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_error_for_one_event_is_charged_to_it_alone() -> Result<()> {
    let receiver = Receiver::start("")?;
    receiver.fail("poison", 500, &[])?;
    let more = format!("max_retries = 2\n{QUICK_RETRY}");
    let mut stage = Stage::set(Engine::Sqlite, play(&receiver, "orders", &more)).await?;
    let poison = Uuid::now_v7();
    let mut events = vec![order("poison", 0).id(poison)];
    events.extend((0..60).map(|n| order(&format!("good{n}"), n)));
    stage.enqueue(events).await?;
    let mut relay = stage.relay("relay")?;
    let failed = "SELECT count(*) FROM outbox_tasks WHERE status = 'FAILED' AND aggregate_id = 'poison'";
    let mut sent = 60;
    let end = tokio::time::Instant::now() + SOON;
    // Whether it is to blame shows in what is accepted after it: so there must be something.
    while stage.number(failed).await? == 0 {
        ensure!(tokio::time::Instant::now() < end, "not FAILED: {}", relay.log());
        stage.enqueue((0..40).map(|n| order(&format!("good{n}"), sent + n)).collect()).await?;
        sent += 40;
        stage.until(PUBLISHED, i64::try_from(sent)?, SOON).await?;
    }
    let charged = "SELECT count(*) FROM outbox_tasks WHERE retry_count > 0 AND aggregate_id <> 'poison'";
    ensure!(stage.number(charged).await? == 0, "another row was charged");
    let tries: Vec<Attempt> =
        receiver.attempts()?.into_iter().filter(|attempt| attempt.status == 500).collect();
    ensure!(
        tries.len() >= 3 && tries.iter().all(|attempt| attempt.id == poison),
        "webhook-id must be the event's"
    );
    relay.terminate();
    ensure!(relay.wait(SOON)?.success(), "SIGTERM: {}", relay.log());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_asks_for_a_pause_gets_it_and_nobody_is_charged() -> Result<()> {
    const WISH: f64 = 3.0;
    let receiver = Receiver::start("concurrency = 1")?;
    receiver.fail("a", 429, &[("retry-after", "3")])?;
    let mut stage = Stage::set(Engine::Postgres, play(&receiver, "orders", "")).await?;
    stage.enqueue(vec![order("a", 0), order("a", 1), order("b", 2)]).await?;
    let mut relay = stage.relay("relay")?;
    let end = tokio::time::Instant::now() + SOON;
    while receiver.attempts().map_or(0, |attempts| attempts.len()) < 2 {
        ensure!(tokio::time::Instant::now() < end, "no second attempt: {}", relay.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    receiver.change(|rules| rules.failures.clear())?;
    stage.until(PUBLISHED, 3, SOON).await?;
    ensure!(stage.number(CHARGED).await? == 0, "a row was charged");
    let attempts = receiver.attempts()?;
    let pause = attempts[1].seconds - attempts[0].seconds;
    ensure!(attempts[0].status == 429 && pause >= WISH, "left alone for {pause} s only");
    relay.terminate();
    ensure!(relay.wait(SOON)?.success(), "SIGTERM: {}", relay.log());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signatures_are_those_of_standard_webhooks_and_secrets_stay_secret() -> Result<()> {
    let secrets =
        ["whsec_aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg==", "whsec_c2Vjb25kc2Vjb25kc2Vjb25kc2Vjb25k"];
    let options = format!(
        "signing_secret = \"{}\"\nbearer_token = \"hunter2\"\nheaders = {{ x-api-key = \"hunter2\" }}",
        secrets.join(" ")
    );
    let receiver = Receiver::start(&options)?;
    // A third one, which the relay does not have.
    let stranger = "whsec_dGhpcmR0aGlyZHRoaXJkdGhpcmR0aGlyZA==".to_owned();
    receiver.change(|rules| rules.secrets = vec![stranger])?;
    let mut stage = Stage::set(Engine::Sqlite, play(&receiver, "orders", "")).await?;
    stage.enqueue((0..20).map(|n| order(&format!("k{}", n % 4), n)).collect()).await?;
    let mut relay = stage.relay("relay")?;
    let end = tokio::time::Instant::now() + SOON;
    while !relay.log().contains("HTTP 401") {
        ensure!(tokio::time::Instant::now() < end, "a bad signature is no alarm: {}", relay.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ensure!(
        stage.number(CHARGED).await? == 0 && stage.count("FAILED").await? == 0,
        "a row pays for the secret"
    );
    receiver.change(|rules| rules.secrets = secrets.map(str::to_owned).to_vec())?;
    stage.until(PUBLISHED, 20, SOON).await?;
    let accepted = receiver.accepted()?;
    ensure!(accepted.len() == 20, "{} arrived", accepted.len());
    let (authorization, key) = (&accepted[0].headers["authorization"], &accepted[0].headers["x-api-key"]);
    ensure!(authorization == "Bearer hunter2" && key == "hunter2", "{authorization}, {key}");
    let check = stage.outbox(&["check"])?;
    ensure!(check.contains("answers HEAD with 405") && check.contains("not encrypted"), "{check}");
    let shown = stage.outbox(&["config", "show"])? + &check + &relay.log();
    ensure!(!shown.contains("hunter2") && !shown.contains("whsec_"), "a secret is shown: {shown}");
    relay.terminate();
    ensure!(relay.wait(SOON)?.success(), "SIGTERM: {}", relay.log());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cloudevent_is_mapped_as_the_http_binding_says() -> Result<()> {
    for (envelope, engine) in
        [("cloudevents-binary", Engine::Postgres), ("cloudevents-structured", Engine::Sqlite)]
    {
        let receiver = Receiver::start(&format!("envelope = \"{envelope}\""))?;
        // The receiver judges by raw headers only: it accepts every key.
        let mut stage = Stage::set(engine, play(&receiver, "orders", "")).await?;
        stage.enqueue(vec![order("Zürich 7", 1).header("traceparent", "00-1-2-01")]).await?;
        stage.outbox(&["run", "--once"])?;
        let accepted = receiver.accepted()?;
        ensure!(accepted.len() == 1, "{} arrived", accepted.len());
        let (headers, body) = (&accepted[0].headers, accepted[0].body.clone().unwrap_or_default());
        ensure!(headers["traceparent"] == "00-1-2-01", "{headers:?}");
        if envelope == "cloudevents-binary" {
            ensure!(headers["ce-specversion"] == "1.0" && headers["ce-type"] == "Changed", "{headers:?}");
            ensure!(headers["ce-subject"] == "Z%C3%BCrich%207", "{headers:?}");
            ensure!(headers["content-type"] == "application/json" && body == br#"{"n": 1}"#, "{headers:?}");
        } else {
            ensure!(headers["content-type"] == "application/cloudevents+json", "{headers:?}");
            let event: serde_json::Value = serde_json::from_slice(&body)?;
            ensure!(event["subject"] == "Zürich 7" && event["data"]["n"] == 1, "{event}");
        }
    }
    Ok(())
}

/// A name that leads to an address which is not public: refused when it is connected to, with an alarm.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_of_a_private_address_is_refused() -> Result<()> {
    let Some(name) = private_name() else {
        outbox_tests::skip("/etc/hosts has no name but localhost for a private address");
        return Ok(());
    };
    let receiver = Receiver::start("")?;
    let refused = format!(
        "[queues.default]\nsink = \"hook\"\n[sinks.hook]\ntype = \"http\"\nurl = \"http://{name}:{}/\"\n",
        receiver.port
    );
    let mut stage = Stage::set(Engine::Sqlite, refused).await?;
    stage.enqueue(vec![order("a", 0)]).await?;
    let relay = stage.relay("relay")?;
    let end = tokio::time::Instant::now() + SOON;
    while !relay.log().contains("allow_private_addresses") {
        ensure!(tokio::time::Instant::now() < end, "no alarm: {}", relay.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ensure!(relay.log().contains("WARN") && relay.log().contains(&name), "{}", relay.log());
    ensure!(stage.number(CHARGED).await? == 0 && stage.count("PENDING").await? <= 1, "a row was charged");
    ensure!(stage.count("FAILED").await? == 0, "a row FAILED");
    ensure!(receiver.attempts()?.is_empty(), "it was connected to");
    Ok(())
}

/// A name, other than localhost, that this machine knows for a loopback address.
fn private_name() -> Option<String> {
    let hosts = fs::read_to_string("/etc/hosts").ok()?;
    let entries = hosts.lines().map(|line| line.split('#').next().unwrap_or_default().split_whitespace());
    let loopback = entries.filter_map(|mut words| {
        let address: std::net::IpAddr = words.next()?.parse().ok()?;
        address.is_loopback().then_some(words)
    });
    loopback.flatten().find(|name| !name.contains("localhost.") && *name != "localhost").map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_with_an_authority_of_ones_own_and_a_client_certificate() -> Result<()> {
    let directory = TempDir::new()?;
    if !make_certificates(directory.path())? {
        outbox_tests::skip("openssl is not installed");
        return Ok(());
    }
    let receiver = Receiver::start_in(directory, "")?;
    let url = format!("https://localhost:{}/events?key=hunter2", receiver.port);
    let sink = format!("type = \"http\"\nurl = \"{url}\"\nallow_private_addresses = true");
    tls::run(&receiver, &sink, receiver.directory.path()).await
}

/// Tunnels for whoever asks by CONNECT; returns its port. What was asked for goes to `asked`.
async fn proxy(asked: tokio::sync::mpsc::UnboundedSender<String>) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A tunnel ends with either side.
            tokio::spawn(tunnel(stream, asked.clone()));
        }
    });
    Ok(port)
}

async fn tunnel(mut client: TcpStream, asked: tokio::sync::mpsc::UnboundedSender<String>) -> Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(client.read_buf(&mut head).await? > 0, "the client is gone");
    }
    let head = String::from_utf8(head)?;
    let address = head.split(' ').nth(1).context("CONNECT HOST:PORT")?;
    asked.send(head.lines().next().unwrap_or_default().to_owned())?;
    let mut receiver = TcpStream::connect(address).await?;
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    tokio::io::copy_bidirectional(&mut client, &mut receiver).await?;
    Ok(())
}

/// TLS is with the receiver, and the proxy only carries it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_carries_tls_without_looking_into_it() -> Result<()> {
    let directory = TempDir::new()?;
    if !make_certificates(directory.path())? {
        outbox_tests::skip("openssl is not installed");
        return Ok(());
    }
    let (ask, mut asked) = tokio::sync::mpsc::unbounded_channel();
    let proxy = proxy(ask).await?;
    let files = directory.path().display().to_string();
    let receiver = Receiver::start_in(directory, "")?;
    let sink = format!(
        "type = \"http\"\nurl = \"https://localhost:{}/events\"\nallow_private_addresses = true\n\
         proxy = \"http://127.0.0.1:{proxy}\"\nca_file = \"{files}/ca.crt\"\n\
         cert_file = \"{files}/client.crt\"\nkey_file = \"{files}/client.key\"",
        receiver.port
    );
    let mut stage =
        Stage::set(Engine::Sqlite, play(&receiver, "orders", "").replace(&receiver.sink(), &sink)).await?;
    stage.enqueue((0..20).map(|n| order(&format!("k{}", n % 4), n)).collect()).await?;
    stage.outbox(&["run", "--once"])?;
    ensure!(receiver.accepted()?.len() == 20, "not all arrived");
    let first = asked.recv().await.context("the proxy was not asked")?;
    ensure!(first == format!("CONNECT localhost:{} HTTP/1.1", receiver.port), "{first}");
    Ok(())
}
