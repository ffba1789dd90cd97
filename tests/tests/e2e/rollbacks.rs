//! Applications whose transactions are rolled back, beside a relay: what was rolled back is never delivered.
#![allow(clippy::print_stderr)] // the figures of a run

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use outbox_schema::{NewEvent, enqueue};
use outbox_sinks::scripted::{Controller, Reply};
use sqlx::{Connection, PgConnection, SqliteConnection};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::checker::{self, Attempt, Fate};
use crate::stage::{Engine, Stage};

const TRANSACTIONS: u64 = 10_000;
const WRITERS: u64 = 4;
const KEYS_OF_A_WRITER: u64 = 50;
pub(crate) const ORDERS: &str = include_str!("../../../examples/writers/orders.sql");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_transactions_and_no_rolled_back_event_on_postgres() -> Result<()> {
    run(Engine::Postgres).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_transactions_and_no_rolled_back_event_on_sqlite() -> Result<()> {
    run(Engine::Sqlite).await
}

/// How a transaction ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Commit,
    /// The application changes its mind after it has enqueued.
    Rollback,
    /// A statement after the enqueueing fails.
    Failure,
}

/// One transaction: an order and its event.
struct Order {
    id: String,
    event_id: Uuid,
    key: String,
    position: u64,
    end: End,
}

/// The orders of one writer, 30 of 100 rolled back. Its keys are its own.
fn orders(writer: u64) -> impl Iterator<Item = Order> {
    (0..TRANSACTIONS / WRITERS).map(move |n| Order {
        id: format!("{writer}-{n}"),
        event_id: Uuid::now_v7(),
        key: format!("{writer}/{}", n % KEYS_OF_A_WRITER),
        position: n,
        // Not the same keys each time.
        end: match (n * 7 + n / 20) % 20 {
            0..3 => End::Rollback,
            3..6 => End::Failure,
            _ => End::Commit,
        },
    })
}

async fn run(engine: Engine) -> Result<()> {
    let sink = Controller::bind(|_| Reply::Ack).await?;
    let play = format!(
        "[queues.default]\nsink = \"scripted\"\nbatch = 100\n\
         [sinks.scripted]\ntype = \"scripted\"\naddress = \"{}\"\nrelay = \"RELAY\"\n",
        sink.address()
    );
    let mut stage = Stage::set(engine, play).await?;
    stage.execute(ORDERS).await?;
    let mut relay = stage.relay("relay")?;
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let url = stage.url.clone();
        match engine {
            Engine::Postgres => writers.spawn(async move { write_postgres(&url, writer).await }),
            Engine::Sqlite => writers.spawn(async move { write_sqlite(&url, writer).await }),
        };
    }
    let mut attempts = Vec::new();
    for written in writers.join_all().await {
        attempts.extend(written?);
    }
    let unsettled = "SELECT count(*) FROM outbox_tasks WHERE settled_at IS NULL";
    stage.until(unsettled, 0, Duration::from_secs(60)).await.with_context(|| relay.log())?;
    relay.terminate();
    ensure!(relay.wait(Duration::from_secs(15))?.success(), "SIGTERM: {}", relay.log());

    let deliveries: Vec<Uuid> = sink.delivered().into_iter().map(|delivery| delivery.id).collect();
    let report = checker::check(&attempts, &deliveries);
    let rolled_back = attempts.len() - report.committed;
    eprintln!(
        "{engine:?}: {} transactions, {rolled_back} rolled back, {} delivered, {} unexpected, {} lost",
        attempts.len(),
        report.delivered,
        report.unexpected.len(),
        report.lost.len()
    );
    report.assert_clean();
    ensure!((attempts.len(), rolled_back) == (10_000, 3_000), "the load is not the one that was asked for");
    let committed = report.committed as i64;
    ensure!(stage.count("PUBLISHED").await? == committed, "each committed event is there");
    ensure!(stage.number("SELECT count(*) FROM outbox_tasks").await? == committed, "and no other");
    ensure!(stage.number("SELECT count(*) FROM orders").await? == committed, "events and orders are as many");
    Ok(())
}

fn attempt(order: Order) -> Attempt {
    let fate = if order.end == End::Commit { Fate::Committed } else { Fate::RolledBack };
    Attempt { id: order.event_id, key: order.key, position: order.position, fate }
}

fn event(order: &Order) -> NewEvent {
    NewEvent::new("Order", &order.key).id(order.event_id).json_text(r#"{"total_cents": 4200}"#)
}

/// Half of the writers call the SQL function, half the crate.
async fn write_postgres(url: &str, writer: u64) -> Result<Vec<Attempt>> {
    let mut connection = PgConnection::connect(url).await?;
    let mut attempts = Vec::new();
    for order in orders(writer) {
        let mut tx = connection.begin().await?;
        insert_order_postgres(&mut tx, &order).await?;
        if writer.is_multiple_of(2) {
            let call = "SELECT outbox_enqueue('Order', $1, '{\"total_cents\": 4200}', id => $2)";
            sqlx::query(call).bind(&order.key).bind(order.event_id).execute(&mut *tx).await?;
        } else {
            enqueue(&mut tx, event(&order)).await?;
        }
        match order.end {
            End::Commit => tx.commit().await?,
            End::Rollback => tx.rollback().await?,
            End::Failure => {
                ensure!(insert_order_postgres(&mut tx, &order).await.is_err(), "the order is there already");
                tx.rollback().await?;
            }
        }
        attempts.push(attempt(order));
    }
    Ok(attempts)
}

async fn insert_order_postgres(connection: &mut PgConnection, order: &Order) -> Result<(), sqlx::Error> {
    let insert = "INSERT INTO orders (id, total_cents) VALUES ($1, 4200)";
    sqlx::query(insert).bind(&order.id).execute(connection).await.map(|_| ())
}

async fn write_sqlite(url: &str, writer: u64) -> Result<Vec<Attempt>> {
    let mut connection = SqliteConnection::connect(url).await?;
    sqlx::query("PRAGMA busy_timeout = 60000").execute(&mut connection).await?;
    sqlx::query("PRAGMA synchronous = normal").execute(&mut connection).await?;
    let mut attempts = Vec::new();
    for order in orders(writer) {
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        insert_order_sqlite(&mut tx, &order).await?;
        enqueue(&mut tx, event(&order)).await?;
        match order.end {
            End::Commit => tx.commit().await?,
            End::Rollback => tx.rollback().await?,
            End::Failure => {
                ensure!(insert_order_sqlite(&mut tx, &order).await.is_err(), "the order is there already");
                tx.rollback().await?;
            }
        }
        attempts.push(attempt(order));
    }
    Ok(attempts)
}

async fn insert_order_sqlite(connection: &mut SqliteConnection, order: &Order) -> Result<(), sqlx::Error> {
    let insert = "INSERT INTO orders (id, total_cents) VALUES (?, 4200)";
    sqlx::query(insert).bind(&order.id).execute(connection).await.map(|_| ())
}
