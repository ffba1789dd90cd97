//! All of it at once: the service in this process, a relay and a consumer beside it, each killed once on the way.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::balances::Balances;
use crate::service;
use crate::sources::{Address, EXCHANGE, stream_name};

/// How long the last event may take to arrive.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to run, and between what.
#[derive(Debug, clap::Args)]
pub(crate) struct Demo {
    /// Database of service and consumer, sqlite://FILE or postgres://…; a temporary SQLite file unless given
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    database: Option<String>,
    /// What lies between relay and consumer, as `consume --from` takes it; a temporary file unless given
    #[arg(long)]
    broker: Option<Address>,
    /// How many orders are placed
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    orders: u32,
    /// The relay's program; built with cargo unless given
    #[arg(long, value_name = "PATH")]
    outbox: Option<PathBuf>,
}

/// What the customers of this run have ordered: orders and cents by account.
type Ordered = BTreeMap<String, (i64, i64)>;

impl Demo {
    pub(crate) async fn run(self) -> Result<()> {
        let directory = tempfile::Builder::new().prefix("orders-").tempdir()?;
        let database = match &self.database {
            Some(url) => url.clone(),
            None => format!("sqlite://{}", directory.path().join("orders.db").display()),
        };
        let address = match &self.broker {
            Some(address) => address.clone(),
            None => Address::File(directory.path().join("events.jsonl")),
        };
        let stage = Stage {
            outbox: self.outbox_program().await?,
            config: directory.path().join("outbox.toml"),
            database,
            address,
        };
        tokio::fs::write(&stage.config, stage.relay_config()).await?;
        let migrated = stage.relay(&["migrate", "up"])?.wait().await?;
        ensure!(migrated.success(), "`outbox migrate up` has failed: {migrated}");
        stage.play(self.orders).await
    }

    /// The relay's program, newly built where cargo runs this one.
    async fn outbox_program(&self) -> Result<PathBuf> {
        if let Some(program) = &self.outbox {
            return Ok(program.clone());
        }
        if let Some(cargo) = std::env::var_os("CARGO") {
            let built = Command::new(cargo).args(["build", "-p", "outbox-relay"]).status().await?;
            ensure!(built.success(), "cannot build the relay");
        }
        let program = std::env::current_exe()?.with_file_name("outbox");
        ensure!(program.exists(), "no relay at {}: name it with --outbox PATH", program.display());
        Ok(program)
    }
}

/// What the processes share.
struct Stage {
    outbox: PathBuf,
    config: PathBuf,
    database: String,
    address: Address,
}

impl Stage {
    async fn play(&self, orders: u32) -> Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let service = listener.local_addr()?.to_string();
        let router = service::open(&self.database).await?;
        tokio::spawn(async move { axum::serve(listener, router).await });
        let balances = Balances::open(&self.database, true).await?;
        let (mut relay, mut consumer) = (self.relay(&["run"])?, self.consumer()?);

        let mut ordered = Ordered::new();
        // Accounts that no earlier run on the same database has had.
        let run = &Uuid::new_v4().simple().to_string()[..8];
        say(format_args!("placing {orders} orders at http://{service}"))?;
        for number in 0..orders {
            if number == orders / 2 {
                until_one_is_counted(&balances, &ordered).await?;
                say(format_args!("kill -9 to the relay and the consumer, and both start again"))?;
                relay.kill().await?;
                consumer.kill().await?;
                (relay, consumer) = (self.relay(&["run"])?, self.consumer()?);
            }
            let (account, cents) = (format!("{run}-{}", number % 5), i64::from(number) % 97 + 1);
            place_order(&service, &account, cents).await?;
            let sum = ordered.entry(account).or_default();
            *sum = (sum.0 + 1, sum.1 + cents);
        }
        until_all_are_counted(&balances, &ordered).await?;
        relay.kill().await?;
        consumer.kill().await?;
        compare(&balances, &ordered).await
    }

    fn relay(&self, arguments: &[&str]) -> Result<Child> {
        let mut command = Command::new(&self.outbox);
        command.arg("--config").arg(&self.config).args(arguments);
        start(command).with_context(|| format!("cannot start {}", self.outbox.display()))
    }

    fn consumer(&self) -> Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["consume", "--from", &self.address.to_string()]).env("DATABASE_URL", &self.database);
        start(command).context("cannot start the consumer")
    }

    /// Short leases: what a killed relay held is soon another one's.
    fn relay_config(&self) -> String {
        format!(
            "[store]\nurl = {}\n[queues.default]\nsink = \"broker\"\n\
             destination = \"{{{{ aggregate_type | lower }}}}.events\"\nlease = \"3s\"\npublish_timeout = \"2s\"\n\
             [sinks.broker]\n{}\n[sweeper]\ninterval = \"500ms\"\n[http]\nlisten = \"off\"\n",
            quoted(&self.database),
            sink(&self.address)
        )
    }
}

/// The relay's sink that delivers to where this source reads. It makes what is missing, as suits a trial.
fn sink(address: &Address) -> String {
    match address {
        Address::File(path) => format!("type = \"file\"\npath = {}", quoted(&path.to_string_lossy())),
        Address::Http(listen) => {
            format!("type = \"http\"\nurl = \"http://{listen}/\"\nallow_private_addresses = true")
        }
        Address::Kafka(brokers) => format!("type = \"kafka\"\nbrokers = {}\ncreate = true", quoted(brokers)),
        Address::Nats(url) => {
            let subject = "account.events";
            let stream = format!("stream = \"{}\"\nsubjects = \"{subject}\"", stream_name(subject));
            format!("type = \"nats\"\nurl = {}\ncreate = true\n{stream}", quoted(url))
        }
        Address::RabbitMq(url) => {
            format!("type = \"rabbitmq\"\nurl = {}\nexchange = \"{EXCHANGE}\"\ncreate = true", quoted(url))
        }
        Address::Redis(url) => format!("type = \"redis\"\nurl = {}\ncreate = true", quoted(url)),
    }
}

/// A string as TOML writes it, and JSON too.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn start(mut command: Command) -> io::Result<Child> {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OUTBOX_") {
            command.env_remove(name);
        }
    }
    if std::env::var_os("RUST_LOG").is_none() {
        command.env("RUST_LOG", "error");
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).spawn()
}

/// Places an order, as any HTTP client would.
async fn place_order(service: &str, account: &str, cents: i64) -> Result<()> {
    let body = format!("{{\"amount_cents\": {cents}}}");
    let head = format!(
        "POST /accounts/{account}/orders HTTP/1.1\r\nhost: {service}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(service).await?;
    stream.write_all((head + &body).as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    ensure!(answer.starts_with("HTTP/1.1 201 "), "an order was not taken: {answer}");
    Ok(())
}

async fn until_one_is_counted(balances: &Balances, ordered: &Ordered) -> Result<()> {
    let account = ordered.keys().next().context("nothing was ordered")?;
    until("the first event", async || Ok(balances.of(account).await?.applied > 0)).await
}

async fn until_all_are_counted(balances: &Balances, ordered: &Ordered) -> Result<()> {
    for (account, (orders, _)) in ordered {
        until("the last event", async || Ok(balances.of(account).await?.applied >= *orders)).await?;
    }
    Ok(())
}

async fn until(what: &str, mut done: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !done().await? {
        ensure!(Instant::now() < end, "{what} has not arrived within {PATIENCE:?}");
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Shows the books of both sides.
///
/// # Errors
/// When they differ.
async fn compare(balances: &Balances, ordered: &Ordered) -> Result<()> {
    let (mut duplicates, mut wrong) = (0, 0);
    say(format_args!(
        "{:12} {:>8} {:>8} {:>8} {:>10}",
        "account", "orders", "ordered", "balance", "duplicates"
    ))?;
    for (account, (orders, cents)) in ordered {
        let balance = balances.of(account).await?;
        let row = format!("{account:12} {orders:8} {cents:8} {:8} {:10}", balance.cents, balance.duplicates);
        say(format_args!("{row}"))?;
        duplicates += balance.duplicates;
        wrong += i32::from(balance.cents != *cents || balance.applied != *orders);
    }
    ensure!(wrong == 0, "{wrong} of {} balances differ from what was ordered", ordered.len());
    say(format_args!("every balance is exact; {duplicates} duplicates were left out"))?;
    Ok(())
}

fn say(line: std::fmt::Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
