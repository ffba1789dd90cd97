//! The Rust of `README.md` and `docs/writing.md`: the files that it shows are compiled here, and run.

use outbox_schema::{Enqueued, Outbox, idempotent_id};
use outbox_tests::postgres::shared;
use sqlx::{AssertSqlSafe, Connection};

use crate::enqueue::{Database, database};

#[path = "../../../examples/writers/rust/short.rs"]
mod short;
#[path = "../../../examples/writers/rust/rusqlite.rs"]
mod with_rusqlite;
#[path = "../../../examples/writers/rust/sqlx.rs"]
mod with_sqlx;
#[path = "../../../examples/writers/rust/tokio_postgres.rs"]
mod with_tokio_postgres;

const ORDERS: &str = include_str!("../../../examples/writers/orders.sql");

fn created(order_id: &str) -> Enqueued {
    Enqueued::Inserted(idempotent_id("default", &format!("order:{order_id}:created")))
}

async fn with_orders() -> Database {
    let mut db = database(&shared()[0], "public").await;
    sqlx::raw_sql(ORDERS).execute(&mut db.owner).await.unwrap();
    sqlx::raw_sql("GRANT INSERT ON orders TO PUBLIC").execute(&mut db.owner).await.unwrap();
    db
}

#[tokio::test]
async fn sqlx() {
    let mut db = with_orders().await;
    let mut tx = db.producer.begin().await.unwrap();
    assert_eq!(with_sqlx::place_order(&mut tx, "101", 4200).await.unwrap(), created("101"));
    assert_eq!(with_sqlx::remind(&mut tx, &["101", "102"]).await.unwrap().len(), 2);
    tx.commit().await.unwrap();
    let rows = db
        .column(
            "SELECT concat_ws(' ', event_type, aggregate_id, payload::text) FROM outbox_tasks ORDER BY seq",
        )
        .await;
    assert_eq!(rows, ["OrderCreated 101 {\"total_cents\":4200}", "PaymentDue 101", "PaymentDue 102"]);
}

#[tokio::test]
async fn the_readmes() {
    let mut db = with_orders().await;
    let mut tx = db.producer.begin().await.unwrap();
    assert_eq!(short::place_order(&mut tx, "101", 4200).await.unwrap(), created("101"));
    tx.commit().await.unwrap();
    assert_eq!(db.column("SELECT id FROM orders").await, ["101"]);
    assert_eq!(db.column("SELECT payload::text FROM outbox_tasks").await, ["{\"total_cents\":4200}"]);
}

#[tokio::test]
async fn tokio_postgres() {
    let mut db = with_orders().await;
    let (mut client, connection) = tokio_postgres::connect(&db.url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let tx = client.transaction().await.unwrap();
    assert_eq!(with_tokio_postgres::place_order(&tx, "101", 4200).await.unwrap(), created("101"));
    tx.commit().await.unwrap();
    assert_eq!(db.column("SELECT payload::text FROM outbox_tasks").await, ["{\"total_cents\":4200}"]);
}

#[test]
fn rusqlite() {
    let mut connection = rusqlite::Connection::open_in_memory().unwrap();
    connection.execute_batch(include_str!("../../../migrations/sqlite/0001_outbox.sql")).unwrap();
    connection.execute_batch(ORDERS).unwrap();
    let tx = connection.transaction().unwrap();
    assert_eq!(with_rusqlite::place_order(&tx, "101", 4200).unwrap(), created("101"));
    tx.commit().unwrap();
    let payload: String =
        connection.query_row("SELECT payload FROM outbox_tasks", [], |row| row.get(0)).unwrap();
    assert_eq!(payload, "{\"total_cents\":4200}");
}

/// What the text says in passing.
#[tokio::test]
async fn a_schema_of_its_own() {
    let mut db = database(&shared()[0], "messaging").await;
    let outbox = Outbox::in_schema("messaging").unwrap();
    outbox.enqueue(&mut db.producer, outbox_schema::NewEvent::new("Order", "101")).await.unwrap();
    let call = "SELECT messaging.outbox_enqueue('Order', '102')";
    sqlx::raw_sql(call).execute(&mut db.producer).await.unwrap();
    let rows = db.column("SELECT aggregate_id FROM messaging.outbox_tasks ORDER BY seq").await;
    assert_eq!(rows, ["101", "102"]);
}

/// Every SQL statement that the guide shows, on the engine that it names.
#[tokio::test]
async fn sql() {
    let guide = include_str!("../../../docs/writing.md");
    let blocks: Vec<&str> =
        guide.split("```sql\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0)).collect();
    let (on_sqlite, on_postgres): (Vec<&str>, Vec<&str>) =
        blocks.into_iter().partition(|block| block.starts_with("-- SQLite"));
    assert_eq!((on_sqlite.len(), on_postgres.len()), (1, 4));
    for server in shared() {
        let mut db = database(server, "public").await;
        for block in &on_postgres {
            sqlx::raw_sql(AssertSqlSafe((*block).to_owned())).execute(&mut db.producer).await.expect(block);
        }
        let rows = db.column("SELECT aggregate_type FROM outbox_tasks ORDER BY seq").await;
        assert_eq!(rows, ["Order", "Order", "Invoice", "Invoice"]);
    }
    let connection = rusqlite::Connection::open_in_memory().unwrap();
    connection.execute_batch(include_str!("../../../migrations/sqlite/0001_outbox.sql")).unwrap();
    connection.execute_batch(on_sqlite[0]).unwrap();
}
