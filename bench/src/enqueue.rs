//! What the application pays: a transaction with one business insert, with and without an outbox row, and events in batches
//! beside single ones. One connection, all contenders in turn.

use std::time::Instant;

use anyhow::Result;
use clap::Args;
use outbox_postgres::{PostgresOptions, PostgresStore};
use outbox_schema::{NewEvent, enqueue, enqueue_all};
use outbox_sqlite::{SqliteOptions, SqliteStore};
use outbox_store::Store;
use sqlx::{Connection, PgConnection, SqliteConnection};

use crate::drain::open_sqlite;
use crate::engine::{Engine, Server};
use crate::report::Report;

const BATCHES: [usize; 4] = [1, 10, 100, 1000];
const CALL: &str = "SELECT outbox_enqueue('Order', $1, $2::json, event_type => 'OrderCreated')";

/// How much is written.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Transactions of each contender in a run.
    #[arg(long, default_value_t = 2000)]
    transactions: u32,
    /// Events of each batch size in a run.
    #[arg(long, default_value_t = 5000)]
    events: usize,
    /// Payload size in bytes.
    #[arg(long, default_value_t = 500)]
    payload: usize,
    /// Interleaved runs of each contender.
    #[arg(long, default_value_t = 7)]
    runs: u32,
}

/// What a transaction writes beside its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// By the crate.
    Event,
    /// By the SQL function.
    Call,
}

impl Beside {
    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "business row alone",
            Self::Event => "and enqueue",
            Self::Call => "and outbox_enqueue",
        }
    }
}

enum Database {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

/// Measures.
pub(crate) async fn run(engine: Engine, load: Load) -> Result<Report> {
    let server = Server::start(engine)?;
    let mut report = Report::new(format!(
        "{engine:?}: payload {} B, one connection, {} runs of {} transactions or {} events",
        load.payload, load.runs, load.transactions, load.events
    ));
    for flushed in [true, false] {
        transactions(&mut report, &server, &load, flushed).await?;
    }
    batches(&mut report, &server, &load).await?;
    Ok(report)
}

async fn transactions(report: &mut Report, server: &Server, load: &Load, flushed: bool) -> Result<()> {
    let place = server.fresh_database().await?;
    let mut db = Database::prepare(server.engine(), &place.url, flushed).await?;
    let contenders: &[Beside] = match server.engine() {
        Engine::Postgres => &[Beside::Nothing, Beside::Event, Beside::Call],
        Engine::Sqlite => &[Beside::Nothing, Beside::Event],
    };
    let mut times_us = vec![Vec::new(); contenders.len()];
    let mut order = 0;
    // The first round warms up.
    for round in 0..=load.runs {
        for (times_us, beside) in times_us.iter_mut().zip(contenders) {
            let start = Instant::now();
            for _ in 0..load.transactions {
                order += 1;
                db.transaction(order, *beside, load).await?;
            }
            if round > 0 {
                times_us.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(load.transactions));
            }
        }
    }
    let how = db.commits(flushed);
    for (times, beside) in times_us.iter().zip(contenders) {
        report.line(format!("{}, {how}", beside.name()), "µs/transaction", times.clone());
        if *beside != Beside::Nothing {
            let name = format!("{} / {}, {how}", beside.name(), Beside::Nothing.name());
            report.ratio(name, times, &times_us[0]);
        }
    }
    Ok(())
}

async fn batches(report: &mut Report, server: &Server, load: &Load) -> Result<()> {
    let place = server.fresh_database().await?;
    let mut db = Database::prepare(server.engine(), &place.url, true).await?;
    for size in BATCHES {
        let transactions = (load.events / size).max(1);
        let (mut single, mut batch) = (Vec::new(), Vec::new());
        for round in 0..=load.runs {
            for (rates, at_once) in [(&mut single, false), (&mut batch, true)] {
                let start = Instant::now();
                for _ in 0..transactions {
                    db.batch(size, at_once, load).await?;
                }
                if round > 0 {
                    rates.push((transactions * size) as f64 / start.elapsed().as_secs_f64());
                }
            }
        }
        report.ratio(format!("{size} in a transaction: enqueue_all / enqueue"), &batch, &single);
        report.line(format!("{size} in a transaction: enqueue"), "events/s", single);
        report.line(format!("{size} in a transaction: enqueue_all"), "events/s", batch);
    }
    Ok(())
}

fn event(load: &Load) -> NewEvent {
    NewEvent::new("Order", "101").event_type("OrderCreated").json_text(payload(load))
}

fn payload(load: &Load) -> String {
    format!(r#"{{"pad":"{}"}}"#, "x".repeat(load.payload.saturating_sub(10)))
}

impl Database {
    /// Migrated, with a business table. `flushed`: a commit is on the disk when it is answered.
    async fn prepare(engine: Engine, url: &str, flushed: bool) -> Result<Self> {
        let mut db = match engine {
            Engine::Postgres => {
                PostgresStore::connect(PostgresOptions::from_url(url)?).await?.migrate().await?;
                Self::Postgres(PgConnection::connect(url).await?)
            }
            Engine::Sqlite => {
                let mut options = SqliteOptions::new(url.trim_start_matches("sqlite://"), "bench");
                options.create = true;
                let store = SqliteStore::open(options).await?;
                store.migrate().await?;
                store.close().await;
                Self::Sqlite(open_sqlite(url).await?)
            }
        };
        let setting = match (engine, flushed) {
            (Engine::Postgres, true) => "SET synchronous_commit = on",
            (Engine::Postgres, false) => "SET synchronous_commit = off",
            (Engine::Sqlite, true) => "PRAGMA synchronous = FULL",
            (Engine::Sqlite, false) => "PRAGMA synchronous = NORMAL",
        };
        db.execute(setting).await?;
        db.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY, total_cents BIGINT NOT NULL)").await?;
        Ok(db)
    }

    fn commits(&self, flushed: bool) -> &'static str {
        match (self, flushed) {
            (Self::Postgres(_), true) => "synchronous_commit = on",
            (Self::Postgres(_), false) => "synchronous_commit = off",
            (Self::Sqlite(_), true) => "synchronous = FULL",
            (Self::Sqlite(_), false) => "synchronous = NORMAL",
        }
    }

    async fn execute(&mut self, sql: &'static str) -> Result<()> {
        match self {
            Self::Postgres(connection) => sqlx::query(sql).execute(connection).await.map(|_| ())?,
            Self::Sqlite(connection) => sqlx::query(sql).execute(connection).await.map(|_| ())?,
        }
        Ok(())
    }

    async fn begin(&mut self) -> Result<()> {
        match self {
            Self::Postgres(_) => self.execute("BEGIN").await,
            Self::Sqlite(_) => self.execute("BEGIN IMMEDIATE").await,
        }
    }

    async fn transaction(&mut self, order: i64, beside: Beside, load: &Load) -> Result<()> {
        self.begin().await?;
        match self {
            Self::Postgres(connection) => {
                let insert = "INSERT INTO orders (id, total_cents) VALUES ($1, 4200)";
                sqlx::query(insert).bind(order).execute(&mut *connection).await?;
                match beside {
                    Beside::Nothing => {}
                    Beside::Event => enqueue(connection, event(load)).await.map(|_| ())?,
                    Beside::Call => {
                        let call = sqlx::query(CALL);
                        call.bind("101").bind(payload(load)).execute(connection).await.map(|_| ())?;
                    }
                }
            }
            Self::Sqlite(connection) => {
                let insert = "INSERT INTO orders (id, total_cents) VALUES (?, 4200)";
                sqlx::query(insert).bind(order).execute(&mut *connection).await?;
                if beside == Beside::Event {
                    enqueue(connection, event(load)).await?;
                }
            }
        }
        self.execute("COMMIT").await
    }

    async fn batch(&mut self, size: usize, at_once: bool, load: &Load) -> Result<()> {
        self.begin().await?;
        let events = (0..size).map(|_| event(load));
        match self {
            Self::Postgres(connection) if at_once => enqueue_all(connection, events).await.map(|_| ())?,
            Self::Sqlite(connection) if at_once => enqueue_all(connection, events).await.map(|_| ())?,
            Self::Postgres(connection) => {
                for event in events {
                    enqueue(connection, event).await?;
                }
            }
            Self::Sqlite(connection) => {
                for event in events {
                    enqueue(connection, event).await?;
                }
            }
        }
        self.execute("COMMIT").await
    }
}
