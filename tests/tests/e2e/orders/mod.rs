//! The example application under load, over each kind of broker. Relays are killed between a delivery and its settle,
//! consumers between their commit and its acknowledgement: balances stay exact. A second consumer of the same deliveries
//! that does not deduplicate gets them wrong.
#![allow(clippy::print_stderr)] // the figures of a run

mod gate;
mod load;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use outbox_tests::brokers::{free_port, nats::Nats, rabbitmq, redis::Redis, wait_for_port};
use outbox_tests::postgres;
use outbox_tests::process::{Relay, orders_bin, outbox_bin, wait_until};
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::gate::Gate;
use self::load::{Ordered, place_orders, request};
use crate::sinks::Broker;
use crate::sinks::kafka::Cluster;
use crate::stage::{Database, Engine, Stage};

const WAITS: Duration = Duration::from_secs(60);

/// Times that a relay, and that a consumer, is killed where it makes a duplicate for certain.
const KILLS: i64 = 2;

/// From the relay to the consumers.
struct Way {
    /// The lines of `[sinks.broker]`.
    sink: String,
    /// The consumers' `--from`.
    from: String,
    topic: String,
    /// Whether a second consumer gets the same events.
    has_groups: bool,
    /// Whether what a relay sends twice arrives twice.
    has_repeats: bool,
}

impl Way {
    fn new(sink: String, from: String) -> Self {
        let topic = format!("orders-{}", Uuid::now_v7().simple());
        Self { sink, from, topic, has_groups: true, has_repeats: true }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exact_on_sqlite_and_a_file() -> Result<()> {
    let directory = TempDir::new()?;
    let path = directory.path().join("events.jsonl");
    let way = Way::new(
        format!("type = \"file\"\npath = \"{}\"", path.display()),
        format!("file:{}", path.display()),
    );
    demo(None, None)?;
    Shop::open(Engine::Sqlite, way, path).await?.storm().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exact_on_postgres_and_kafka() -> Result<()> {
    let cluster = Cluster::shared().await?;
    let way = Way::new(cluster.sink(), format!("kafka://{}", cluster.brokers));
    cluster.create(&way.topic).await?;
    on_postgres(way).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exact_on_postgres_and_rabbitmq() -> Result<()> {
    let url = rabbitmq::shared().vhost().url();
    on_postgres(Way::new(format!("type = \"rabbitmq\"\nurl = \"{url}\"\nexchange = \"orders\""), url)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exact_on_postgres_and_redis() -> Result<()> {
    let redis = Redis::start(&[])?;
    let url = format!("redis://127.0.0.1:{}", redis.port());
    on_postgres(Way::new(format!("type = \"redis\"\nurl = \"{url}\""), url)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exact_on_postgres_and_nats() -> Result<()> {
    let nats = Nats::start("")?;
    let url = format!("nats://127.0.0.1:{}", nats.port());
    // JetStream remembers message ids for two minutes, and drops what a relay sends again.
    on_postgres(Way { has_repeats: false, ..Way::new(format!("type = \"nats\"\nurl = \"{url}\""), url) })
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exact_on_postgres_and_a_webhook() -> Result<()> {
    let url = format!("http://127.0.0.1:{}", free_port()?);
    let sink = format!("type = \"http\"\nurl = \"{url}/\"\nallow_private_addresses = true");
    on_postgres(Way { has_groups: false, ..Way::new(sink, url) }).await
}

async fn on_postgres(way: Way) -> Result<()> {
    let url = postgres::shared()[0].create_database(None).await?;
    demo(Some(&url), Some(&way.from))?;
    Shop::open(Engine::Postgres, way, PathBuf::new()).await?.storm().await
}

/// The one command of the README.
fn demo(database: Option<&str>, broker: Option<&str>) -> Result<()> {
    let directory = TempDir::new()?;
    let outbox = outbox_bin()?.display().to_string();
    let mut arguments = vec!["demo", "--outbox", &outbox, "--orders", "60"];
    arguments.extend(database.into_iter().flat_map(|url| ["--database", url]));
    arguments.extend(broker.into_iter().flat_map(|url| ["--broker", url]));
    let mut demo = Relay::start_program(&orders_bin()?, &arguments, &directory.path().join("log"))?;
    let status = tokio::task::block_in_place(|| demo.wait(WAITS))?;
    ensure!(status.success() && demo.log().contains("every balance is exact"), "{}", demo.log());
    Ok(())
}

/// A consumer's process and its database.
struct Books {
    arguments: Vec<String>,
    log: PathBuf,
    database: Database,
    /// Where it can be held, on PostgreSQL.
    commit: Option<Gate>,
    process: Relay,
}

impl Books {
    async fn open(engine: Engine, way: &Way, name: &str, directory: &Path, more: &[&str]) -> Result<Self> {
        let url = match engine {
            Engine::Postgres => postgres::shared()[0].create_database(None).await?,
            Engine::Sqlite => format!("sqlite://{}", directory.join(format!("{name}.db")).display()),
        };
        let arguments =
            ["consume", "--database", &url, "--from", &way.from, "--topic", &way.topic, "--group", name];
        let arguments: Vec<String> =
            arguments.iter().chain(more).map(|&argument| argument.to_owned()).collect();
        let log = directory.join(format!("{name}.log"));
        let process = start_orders(&arguments, &log)?;
        // From here on it gets what is published.
        wait_until("the consumer is ready", WAITS, || process.log().contains("keeping balances"))
            .with_context(|| process.log())?;
        let database = Database::connect(engine, &url).await?;
        let commit = match engine {
            Engine::Postgres => Some(Gate::install(&url, gate::COMMIT).await?),
            Engine::Sqlite => None,
        };
        Ok(Self { arguments, log, database, commit, process })
    }

    /// Each time at least one event has had its effect, and is delivered again.
    async fn kill_before_acknowledgement(&mut self) -> Result<()> {
        match &mut self.commit {
            Some(commit) => {
                commit.close().await?;
                commit.until_somebody_waits(WAITS).await?;
                // The commit is on its way, its client does not live to see it.
                self.process.kill();
                commit.open().await?;
            }
            None => {
                // A file knows no acknowledgements.
                self.until_at_least(APPLIED, 1).await?;
                self.process.kill();
            }
        }
        self.process = start_orders(&self.arguments, &self.log)?;
        Ok(())
    }

    /// Once, effect and mark are rolled back together: had the mark stayed, the event would have no effect any more.
    async fn kill_before_commit(&mut self) -> Result<()> {
        let Some(commit) = &mut self.commit else { return Ok(()) };
        commit.close().await?;
        commit.until_somebody_waits(WAITS).await?;
        self.process.kill();
        commit.turn_away().await?;
        commit.open().await?;
        self.process = start_orders(&self.arguments, &self.log)?;
        Ok(())
    }

    /// Waits until a query answers with so much.
    async fn until_at_least(&mut self, sql: &str, wanted: i64) -> Result<()> {
        let end = Instant::now() + WAITS;
        loop {
            let found = self.database.number(sql).await?;
            if found >= wanted {
                return Ok(());
            }
            ensure!(Instant::now() < end, "{sql} is {found} and not {wanted}:\n{}", self.process.log());
            sleep(Duration::from_millis(20)).await;
        }
    }
}

fn start_orders(arguments: &[String], log: &Path) -> Result<Relay> {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Relay::start_program(&orders_bin()?, &arguments, log)
}

const APPLIED: &str = "SELECT CAST(coalesce(sum(applied), 0) AS BIGINT) FROM balances";
const DUPLICATES: &str = "SELECT CAST(coalesce(sum(duplicates), 0) AS BIGINT) FROM balances";

/// Where the relay can be held between a delivery and its settle.
enum Hold {
    Postgres(Gate),
    /// The file that it appends to.
    Sqlite(PathBuf),
}

/// The service, a relay, a consumer, and one that does not deduplicate.
struct Shop {
    stage: Stage,
    settle: Hold,
    service: Relay,
    address: String,
    relay: Relay,
    books: Books,
    careless: Option<Books>,
    /// Duplicates that the relay makes for certain.
    repeats: i64,
    _directory: TempDir,
}

/// Sessions of relays.
const SESSIONS: &str = "SELECT count(*) FROM pg_stat_activity \
    WHERE application_name = 'outbox' AND datname = current_database()";

impl Shop {
    /// `file` is where relays deliver to on SQLite.
    async fn open(engine: Engine, way: Way, file: PathBuf) -> Result<Self> {
        let play = format!(
            "[queues.default]\nsink = \"broker\"\ndestination = \"{}\"\n\
             [sinks.broker]\n{}\n[sweeper]\ninterval = \"200ms\"\n",
            way.topic, way.sink
        );
        let stage = Stage::set(engine, play).await?;
        let directory = TempDir::new()?;
        let address = format!("127.0.0.1:{}", free_port()?);
        let arguments = ["serve", "--database", &stage.url, "--listen", &address].map(str::to_owned);
        let service = start_orders(&arguments, &directory.path().join("service.log"))?;
        let books = Books::open(engine, &way, "books", directory.path(), &[]).await?;
        let careless = if way.has_groups {
            let without = ["--without-deduplication"];
            Some(Books::open(engine, &way, "careless", directory.path(), &without).await?)
        } else {
            None
        };
        let settle = match engine {
            Engine::Postgres => Hold::Postgres(Gate::install(&stage.url, gate::SETTLE).await?),
            Engine::Sqlite => Hold::Sqlite(file),
        };
        let port = address.rsplit(':').next().context("a port")?.parse()?;
        wait_for_port(port, WAITS).with_context(|| service.log())?;
        let relay = stage.relay("relay")?;
        let repeats = if way.has_repeats { KILLS } else { 0 };
        Ok(Self { stage, settle, service, address, relay, books, careless, repeats, _directory: directory })
    }

    /// Kills both kinds of process while customers order, and looks at the books.
    async fn storm(mut self) -> Result<()> {
        let stop = CancellationToken::new();
        let customers = tokio::spawn(place_orders(self.address.clone(), stop.clone()));
        let done = self.kill_all().await;
        stop.cancel();
        let ordered = customers.await?.with_context(|| self.service.log())?;
        done.with_context(|| format!("{}\n{}", self.relay.log(), self.books.process.log()))?;
        self.settle_all().await?;
        self.check(&ordered).await
    }

    async fn kill_all(&mut self) -> Result<()> {
        for _ in 0..KILLS {
            self.kill_relay_before_settle().await?;
            self.books.kill_before_acknowledgement().await?;
            // On SQLite it is left alone: what the relay sends twice is enough to make it wrong.
            if let Some(careless) = self.careless.as_mut().filter(|careless| careless.commit.is_some()) {
                careless.kill_before_acknowledgement().await?;
            }
        }
        self.books.kill_before_commit().await
    }

    /// Each time at least one event has been delivered, and is delivered again.
    async fn kill_relay_before_settle(&mut self) -> Result<()> {
        match &mut self.settle {
            Hold::Postgres(settle) => {
                settle.close().await?;
                settle.until_somebody_waits(WAITS).await?;
                self.relay.kill();
                settle.turn_away().await?;
                // What else it had begun is over: the server may still have been at work for it.
                self.stage.until(SESSIONS, 0, WAITS).await?;
                settle.open().await?;
            }
            Hold::Sqlite(path) => {
                let delivered = hold_settle(&mut self.stage, path).await;
                self.relay.kill();
                delivered?;
                self.stage.execute("ROLLBACK").await?;
            }
        }
        // As if the time had passed.
        let past = match &self.settle {
            Hold::Postgres(_) => "'-infinity'",
            Hold::Sqlite(_) => "0",
        };
        self.stage.execute(&format!("UPDATE outbox_claims SET lease_until = {past}")).await?;
        self.relay = self.stage.relay("relay")?;
        // The sweep deletes claims too: next time, it must not be what waits at the gate.
        let swept = format!("SELECT count(*) FROM outbox_claims WHERE lease_until = {past}");
        self.stage.until(&swept, 0, WAITS).await
    }

    /// Waits until the relay has nothing left to do and the consumers have seen what they must.
    async fn settle_all(&mut self) -> Result<()> {
        let unsettled = "SELECT count(*) FROM outbox_tasks WHERE settled_at IS NULL";
        self.stage.until(unsettled, 0, WAITS).await.with_context(|| self.relay.log())?;
        let orders = self.stage.number("SELECT count(*) FROM orders").await?;
        self.books.until_at_least(APPLIED, orders).await?;
        self.books.until_at_least(DUPLICATES, KILLS + self.repeats).await?;
        if let Some(careless) = &mut self.careless {
            let redelivered = if careless.commit.is_some() { KILLS } else { 0 };
            careless.until_at_least(APPLIED, orders + self.repeats + redelivered).await?;
        }
        Ok(())
    }

    async fn check(&mut self, ordered: &Ordered) -> Result<()> {
        let orders: i64 = ordered.values().map(|(orders, _)| orders).sum();
        let database = &mut self.books.database;
        let marks = database.number("SELECT count(*) FROM processed_events").await?;
        let duplicates = database.number(DUPLICATES).await?;
        let mut careless_wrong = 0;
        for (account, (_, cents)) in ordered {
            let (status, answer) = request(&self.address, "GET", &format!("/accounts/{account}"), "").await?;
            ensure!(status == 200 && answer["total_cents"] == *cents, "the service lost an order: {answer}");
            let balance = format!("SELECT cents FROM balances WHERE account_id = '{account}'");
            let found = self.books.database.number(&balance).await?;
            ensure!(found == *cents, "{account} has {found} cents after orders for {cents}");
            if let Some(careless) = &mut self.careless {
                careless_wrong += i64::from(careless.database.number(&balance).await? != *cents);
            }
        }
        eprintln!(
            "{orders} orders for {} accounts, {marks} marks, {duplicates} duplicates, {careless_wrong} balances wrong without deduplication",
            ordered.len()
        );
        ensure!(marks == orders, "{marks} events are marked as processed after {orders} orders");
        ensure!(duplicates >= KILLS + self.repeats, "inconclusive: only {duplicates} duplicates came");
        ensure!(
            self.careless.is_none() || careless_wrong > 0,
            "inconclusive: without deduplication every balance is right as well"
        );
        Ok(())
    }
}

/// Returns with SQLite's write lock held, so that nothing is settled, and with an event delivered that is not settled.
async fn hold_settle(stage: &mut Stage, path: &Path) -> Result<()> {
    let end = Instant::now() + WAITS;
    let file = File::options().create(true).append(true).open(path)?;
    // No relay can append now: its next claim stays unsettled.
    flock(&file, FlockOperation::LockExclusive)?;
    loop {
        stage.execute("BEGIN IMMEDIATE").await?;
        if stage.number("SELECT count(*) FROM outbox_claims").await? > 0 {
            break;
        }
        stage.execute("ROLLBACK").await?;
        ensure!(Instant::now() < end, "the relay has claimed nothing");
        sleep(Duration::from_millis(5)).await;
    }
    flock(&file, FlockOperation::Unlock)?;
    let claimed = stage.texts("SELECT id FROM outbox_tasks WHERE status = 'PROCESSING'").await?;
    wait_until("the relay's lines", WAITS, || {
        let text = fs::read_to_string(path).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
        claimed.iter().any(|id| whole.contains(id.as_str()))
    })
}
