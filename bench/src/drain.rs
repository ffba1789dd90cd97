//! Drain of a backlog by the relay's own binary, beside rooflines and the textbook loop, in interleaved runs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, SqliteConnection};

use crate::cost::{Cost, Meter, describe, rates, table_use};
use crate::engine::{Database, Engine, Server};
use crate::peers::Peer;
use crate::report::Report;
use crate::sinks::{self, Broker};
use crate::workload::Workload;
use crate::{roofline, textbook};

/// What becomes of a row that was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Published {
    Keep,
    Delete,
}

impl Published {
    fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Delete => "delete",
        }
    }

    fn policy(self) -> outbox_store::Published {
        match self {
            Self::Keep => outbox_store::Published::Keep,
            Self::Delete => outbox_store::Published::Delete,
        }
    }
}

/// What else takes part in a drain.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// What becomes of PUBLISHED rows.
    #[arg(long, value_enum, default_value_t = Published::Delete)]
    published: Published,
    /// Relays at once, in turn.
    #[arg(long, value_delimiter = ',', default_value = "1")]
    relays: Vec<u32>,
    /// A further drain beside so many kept PUBLISHED rows.
    #[arg(long, default_value_t = 0)]
    kept: u32,
    /// A broker instead of the null sink; its client alone takes part.
    #[arg(long, value_enum)]
    sink: Option<sinks::Kind>,
    /// Libraries that take part, each the name of a directory of bench/peers.
    #[arg(long = "peer", value_delimiter = ',', conflicts_with = "sink")]
    peers: Vec<String>,
}

/// Who drains.
#[derive(Clone, Debug)]
enum Contender {
    /// So many relays at once.
    Relays(u32),
    /// One relay, on a table with the kept rows.
    BesideKept,
    /// The relay's statements without a relay.
    Statements,
    /// The least that PostgreSQL can do.
    Sketch,
    /// The least that SQLite can do.
    SqlLoop,
    /// With batches of this size.
    Textbook(u32),
    /// A library that does such work too.
    Peer(Peer),
}

impl Contender {
    fn name(&self) -> String {
        match self {
            Self::Relays(1) => "relay".to_owned(),
            Self::Relays(relays) => format!("{relays} relays"),
            Self::BesideKept => "relay beside kept rows".to_owned(),
            Self::Statements => "shipped statements alone".to_owned(),
            Self::Sketch => "sketch of the statements alone".to_owned(),
            Self::SqlLoop => "SQL loop".to_owned(),
            Self::Textbook(batch) => format!("textbook loop, batch {batch}"),
            Self::Peer(peer) => peer.name().to_owned(),
        }
    }

    fn all(engine: Engine, work: &Workload, options: &Options, peers: Vec<Peer>) -> Vec<Self> {
        let mut all: Vec<_> = options.relays.iter().copied().map(Self::Relays).collect();
        if options.kept > 0 {
            all.push(Self::BesideKept);
        }
        all.push(Self::Statements);
        // Both delete.
        if options.published == Published::Delete {
            all.push(if engine == Engine::Postgres { Self::Sketch } else { Self::SqlLoop });
        }
        all.push(Self::Textbook(work.batch));
        if work.batch != 50 {
            all.push(Self::Textbook(50));
        }
        all.extend(peers.into_iter().map(Self::Peer));
        all
    }
}

/// Where rows go.
#[derive(Clone)]
struct Destination {
    sink: Value,
    name: String,
}

/// Where the runs take place.
struct Place {
    server: Server,
    work: Workload,
    published: Published,
    /// The database with the kept rows.
    kept: Option<Database>,
    broker: Option<Broker>,
    destination: Destination,
}

/// Measures.
pub(crate) async fn run(engine: Engine, work: Workload, options: Options) -> Result<Report> {
    let peers = options.peers.iter().map(|name| Peer::build(name)).collect::<Result<_>>()?;
    let server = Server::start(engine)?;
    let kept =
        if options.kept > 0 { Some(with_kept_rows(&server, &work, options.kept).await?) } else { None };
    let broker = options.sink.map(Broker::start).transpose()?;
    let destination = Destination { sink: json!({ "type": "null" }), name: "nowhere".to_owned() };
    let mut place = Place { server, work, published: options.published, kept, broker, destination };
    let contenders = Contender::all(engine, &work, &options, peers);
    let mut costs = vec![Vec::new(); contenders.len()];
    let (mut clients, mut hot, mut dead) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..work.runs as usize {
        if let Some(broker) = &place.broker {
            let (rate, name) = sinks::client_round(broker, &work, run).await?;
            place.destination = Destination { sink: broker.options(), name };
            clients.push(rate);
        }
        for (contender, costs) in contenders.iter().zip(&mut costs) {
            let (cost, database) = place.round(contender).await?;
            eprintln!("run {}, {}: {:.0}/s", run + 1, contender.name(), cost.rate);
            costs.push(cost);
            if let (Some(database), Engine::Postgres) = (database, engine) {
                let used = table_use(&database.url).await?;
                hot.push(used.hot * 100.0);
                dead.push(used.dead / f64::from(work.rows));
            }
        }
    }
    let mut report = Report::new(title(engine, &work, &options));
    for (contender, costs) in contenders.iter().zip(&costs) {
        describe(&mut report, &contender.name(), costs);
    }
    report.line("relay: updates that are HOT", "%", hot);
    report.line("relay: dead rows left", "rows/event", dead);
    let relay = rates(&costs[0]);
    for (contender, costs) in contenders.iter().zip(&costs).skip(1) {
        report.ratio(format!("{} / {}", contenders[0].name(), contender.name()), &relay, &rates(costs));
    }
    report.ratio("relay / client alone", &relay, &clients);
    report.line("client alone", "events/s", clients);
    Ok(report)
}

fn title(engine: Engine, work: &Workload, options: &Options) -> String {
    format!(
        "{engine:?}: drain of {} rows of {} B over {} keys, batch {}, published = \"{}\", to {}, {} runs",
        work.rows,
        work.payload,
        work.keys,
        work.batch,
        options.published.name(),
        options.sink.map_or_else(|| "null".to_owned(), |kind| format!("{kind:?}")),
        work.runs
    )
}

impl Place {
    /// What a drain has cost; with the database in which a single relay has worked.
    async fn round(&self, contender: &Contender) -> Result<(Cost, Option<Database>)> {
        let Self { server, work, .. } = self;
        let cost = match contender {
            Contender::Relays(relays) => return self.relays(*relays).await,
            Contender::BesideKept => {
                let kept = self.kept.as_ref().context("no rows are kept")?;
                self.drain(kept, 1).await?
            }
            Contender::Statements => roofline::shipped(server, work, self.published.policy()).await?,
            Contender::Sketch => roofline::sketch(server, work).await?,
            Contender::SqlLoop => roofline::sql_loop(server, work).await?,
            Contender::Textbook(batch) => {
                textbook_round(server, &Workload { batch: *batch, ..*work }).await?
            }
            Contender::Peer(peer) => peer.round(server, work).await?,
        };
        Ok((cost, None))
    }

    async fn relays(&self, relays: u32) -> Result<(Cost, Option<Database>)> {
        let database = self.server.fresh_database().await?;
        let cost = self.drain(&database, relays).await?;
        Ok((cost, (relays == 1).then_some(database)))
    }

    /// The relays' own program, its start and its end included.
    async fn drain(&self, database: &Database, relays: u32) -> Result<Cost> {
        let directory = tempfile::tempdir()?;
        let config = self.config(directory.path(), &database.url)?;
        outbox(&config, &["migrate", "up"])?;
        match self.server.engine() {
            Engine::Postgres => fill_postgres(&database.url, &self.work).await?,
            Engine::Sqlite => fill_sqlite(&database.url, &self.work).await?,
        }
        let meter = Meter::start(&self.server).await?;
        let running = (0..relays).map(|_| command(&config, &["run", "--once"])?.spawn().map_err(Into::into));
        for relay in running.collect::<Result<Vec<_>>>()?.iter_mut() {
            let status = relay.wait()?;
            ensure!(status.success(), "a relay ended with {status}");
        }
        let cost = meter.stop(&self.server, self.work.rows.into()).await?;
        let left = unsettled(self.server.engine(), &database.url).await?;
        ensure!(left == 0, "{left} rows are left");
        Ok(cost)
    }

    fn config(&self, directory: &Path, url: &str) -> Result<PathBuf> {
        write_config(
            directory,
            url,
            &self.work,
            self.published,
            &self.destination.sink,
            &self.destination.name,
        )
    }
}

/// Rows that wait or are in flight.
pub(crate) async fn unsettled(engine: Engine, url: &str) -> Result<i64> {
    let sql = "SELECT count(*) FROM outbox_tasks WHERE settled_at IS NULL";
    Ok(match engine {
        Engine::Postgres => sqlx::query_scalar(sql).fetch_one(&mut PgConnection::connect(url).await?).await?,
        Engine::Sqlite => sqlx::query_scalar(sql).fetch_one(&mut open_sqlite(url).await?).await?,
    })
}

async fn textbook_round(server: &Server, work: &Workload) -> Result<Cost> {
    let database = server.fresh_database().await?;
    let (meter, drained) = match server.engine() {
        Engine::Postgres => {
            let mut db = PgConnection::connect(&database.url).await?;
            textbook::load_postgres(&mut db, work).await?;
            (Meter::start(server).await?, textbook::drain_postgres(&mut db, work.batch).await?)
        }
        Engine::Sqlite => {
            let mut db = open_sqlite(&database.url).await?;
            textbook::load_sqlite(&mut db, work).await?;
            (Meter::start(server).await?, textbook::drain_sqlite(&mut db, work.batch).await?)
        }
    };
    let cost = meter.stop(server, drained).await?;
    ensure!(drained == u64::from(work.rows), "the textbook loop saw {drained} of {} rows", work.rows);
    Ok(cost)
}

/// A configuration with one queue to the null sink; returns its path.
pub(crate) fn null_config(directory: &Path, url: &str, work: &Workload) -> Result<PathBuf> {
    write_config(directory, url, work, Published::Delete, &json!({ "type": "null" }), "nowhere")
}

fn write_config(
    directory: &Path,
    url: &str,
    work: &Workload,
    published: Published,
    sink: &Value,
    destination: &str,
) -> Result<PathBuf> {
    let path = directory.join("outbox.toml");
    let mut text = format!(
        "[store]\nurl = \"{url}\"\n[queues.default]\nsink = \"bench\"\ndestination = \"{destination}\"\n\
         batch = {}\npublished = \"{}\"\n[http]\nlisten = \"off\"\n[sinks.bench]\n",
        work.batch,
        published.name()
    );
    // Strings and booleans are the same in JSON and TOML.
    for (key, value) in sink.as_object().context("a sink's options")? {
        text += &format!("{key} = {value}\n");
    }
    std::fs::write(&path, text)?;
    Ok(path)
}

/// The relay's program, built beside this one.
fn binary() -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("outbox");
    ensure!(path.exists(), "build the relay first: cargo build --release -p outbox-relay");
    Ok(path)
}

/// A command of the relay.
pub(crate) fn command(config: &Path, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(binary()?);
    command.arg("--config").arg(config).args(arguments).env("RUST_LOG", "warn").stdout(Stdio::null());
    // It would be taken for a setting of the relay.
    command.env_remove("OUTBOX_TEST_KAFKA_LIBS");
    Ok(command)
}

/// Runs a command of the relay to its end.
pub(crate) fn outbox(config: &Path, arguments: &[&str]) -> Result<()> {
    let status = command(config, arguments)?.status().context("starting the relay")?;
    ensure!(status.success(), "outbox {arguments:?} ended with {status}");
    Ok(())
}

const KEPT_POSTGRES: &str = "
INSERT INTO outbox_tasks (aggregate_type, aggregate_id, payload, status, settled_at)
SELECT 'Order', (i::bigint * 7919 % $2)::text, json_build_object('n', i, 'pad', repeat('x', $3)), 'PUBLISHED', now()
FROM generate_series(1, $1::int) i";

const KEPT_SQLITE: &str = "
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
INSERT INTO outbox_tasks (id, aggregate_type, aggregate_id, payload, status, settled_at)
SELECT printf('%08x-0000-4000-9000-%012x', i, i), 'Order', i * 7919 % ?2,
  json_object('n', i, 'pad', printf('%.*c', ?3, 'x')), 'PUBLISHED', unixepoch() * 1000
FROM n";

/// A database whose table holds so many PUBLISHED rows.
async fn with_kept_rows(server: &Server, work: &Workload, rows: u32) -> Result<Database> {
    let database = server.fresh_database().await?;
    crate::in_process::open(server.engine(), &database).await?.close().await;
    let (rows, keys, pad) = (i32::try_from(rows)?, i64::from(work.keys), i32::try_from(work.pad())?);
    match server.engine() {
        Engine::Postgres => {
            let mut db = PgConnection::connect(&database.url).await?;
            sqlx::query(KEPT_POSTGRES).bind(rows).bind(keys).bind(pad).execute(&mut db).await?;
        }
        Engine::Sqlite => {
            let mut db = open_sqlite(&database.url).await?;
            sqlx::query(KEPT_SQLITE).bind(rows).bind(keys).bind(pad).execute(&mut db).await?;
        }
    }
    Ok(database)
}

/// Opens a SQLite database as the relay sets it up.
pub(crate) async fn open_sqlite(url: &str) -> Result<SqliteConnection> {
    let options: sqlx::sqlite::SqliteConnectOptions = url.parse()?;
    let options = options
        .create_if_missing(true)
        .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
        .synchronous(sqlx::sqlite::SqliteSynchronous::Normal)
        .busy_timeout(std::time::Duration::from_secs(30));
    Ok(SqliteConnection::connect_with(&options).await?)
}

const FILL_POSTGRES: &str = "
INSERT INTO outbox_tasks (aggregate_type, aggregate_id, payload)
SELECT 'Order', (i::bigint * 7919 % $2)::text, json_build_object('n', i, 'pad', repeat('x', $3))
FROM generate_series(1, $1::int) i";

const FILL_SQLITE: &str = "
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
INSERT INTO outbox_tasks (id, aggregate_type, aggregate_id, payload)
SELECT printf('%08x-0000-4000-8000-%012x', i, i), 'Order', i * 7919 % ?2,
  json_object('n', i, 'pad', printf('%.*c', ?3, 'x'))
FROM n";

pub(crate) async fn fill_postgres(url: &str, work: &Workload) -> Result<()> {
    let mut db = PgConnection::connect(url).await?;
    sqlx::query(FILL_POSTGRES)
        .bind(i32::try_from(work.rows)?)
        .bind(i64::from(work.keys))
        .bind(i32::try_from(work.pad())?)
        .execute(&mut db)
        .await?;
    sqlx::raw_sql("VACUUM ANALYZE outbox_tasks").execute(&mut db).await?;
    Ok(())
}

pub(crate) async fn fill_sqlite(url: &str, work: &Workload) -> Result<()> {
    let mut db = open_sqlite(url).await?;
    sqlx::query(FILL_SQLITE)
        .bind(i64::from(work.rows))
        .bind(i64::from(work.keys))
        .bind(i64::from(work.pad()))
        .execute(&mut db)
        .await?;
    Ok(())
}
