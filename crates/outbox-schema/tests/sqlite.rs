//! Enqueueing on SQLite, against the shipped migration.
#![cfg(feature = "sqlite")]

use std::time::Duration;

use outbox_schema::{Enqueued, NewEvent, Outbox, enqueue, enqueue_all};
use sqlx::{Connection, Row, SqliteConnection};

async fn database() -> SqliteConnection {
    let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
    sqlx::raw_sql(include_str!("../../../migrations/sqlite/0001_outbox.sql"))
        .execute(&mut connection)
        .await
        .unwrap();
    connection
}

async fn count(connection: &mut SqliteConnection) -> i64 {
    sqlx::query_scalar("SELECT count(*) FROM outbox_tasks").fetch_one(connection).await.unwrap()
}

#[tokio::test]
async fn every_field_is_stored() {
    let mut connection = database().await;
    let event = NewEvent::new("Order", "101")
        .event_type("OrderCreated")
        .json_text("{\"total\": 1.0,  \"note\": \"ü\"}")
        .content_type("application/vnd.order+json")
        .header("traceparent", "00-1-2-01")
        .header("quoted", "a\"b\\c")
        .header("traceparent", "00-3-4-01")
        .destination("orders.created")
        .queue("orders")
        .max_retries(2)
        .priority(-3);
    let id = event.event_id();
    let mut tx = connection.begin().await.unwrap();
    assert_eq!(enqueue(&mut tx, event).await.unwrap(), Enqueued::Inserted(id));
    tx.commit().await.unwrap();

    let row = sqlx::query("SELECT *, typeof(payload) AS kind FROM outbox_tasks")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(row.get::<String, _>("id"), id.to_string());
    assert_eq!(row.get::<String, _>("aggregate_type"), "Order");
    assert_eq!(row.get::<String, _>("aggregate_id"), "101");
    assert_eq!(row.get::<String, _>("event_type"), "OrderCreated");
    assert_eq!(row.get::<String, _>("payload"), "{\"total\": 1.0,  \"note\": \"ü\"}");
    assert_eq!(row.get::<String, _>("kind"), "text");
    assert_eq!(row.get::<String, _>("content_type"), "application/vnd.order+json");
    assert_eq!(row.get::<String, _>("headers"), r#"{"traceparent":"00-3-4-01","quoted":"a\"b\\c"}"#);
    assert_eq!(row.get::<String, _>("destination"), "orders.created");
    assert_eq!(row.get::<String, _>("queue"), "orders");
    assert_eq!(row.get::<i64, _>("max_retries"), 2);
    assert_eq!(row.get::<i64, _>("priority"), -3);
    assert_eq!(row.get::<String, _>("status"), "PENDING");
    assert_eq!(row.get::<Option<i64>, _>("available_at"), None);
}

#[tokio::test]
async fn a_rolled_back_event_leaves_no_row() {
    let mut connection = database().await;
    let mut tx = connection.begin().await.unwrap();
    enqueue(&mut tx, NewEvent::new("Order", "101")).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(count(&mut connection).await, 0);
}

#[tokio::test]
async fn payloads_keep_their_kind() {
    let mut connection = database().await;
    let bytes = vec![0, 0xff, b'\'', 0];
    let events = [
        NewEvent::new("Order", "1").json("text").unwrap(),
        NewEvent::new("Order", "2").bytes(bytes.clone()),
        NewEvent::new("Order", "3"),
    ];
    enqueue_all(&mut connection, events).await.unwrap();
    let rows = sqlx::query(
        "SELECT typeof(payload) AS kind, CAST(payload AS BLOB) AS payload FROM outbox_tasks ORDER BY seq",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    let stored: Vec<(String, Option<Vec<u8>>)> =
        rows.iter().map(|row| (row.get("kind"), row.get("payload"))).collect();
    let expected = [("text", Some(b"\"text\"".to_vec())), ("blob", Some(bytes)), ("null", None)];
    assert_eq!(stored, expected.map(|(kind, payload)| (kind.to_owned(), payload)));
}

#[tokio::test]
async fn a_delay_counts_from_the_databases_clock() {
    let mut connection = database().await;
    // Rounded up to a millisecond.
    let delay = Duration::from_millis(3_599_999) + Duration::from_micros(1);
    enqueue(&mut connection, NewEvent::new("Order", "1").delay(delay)).await.unwrap();
    let after: i64 = sqlx::query_scalar("SELECT available_at - created_at FROM outbox_tasks")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(after, 3_600_000);
}

#[tokio::test]
async fn an_idempotency_key_inserts_once() {
    let mut connection = database().await;
    let event =
        |total: i32| NewEvent::new("Invoice", "123").idempotency_key("invoice:123:send-email").json(&total);
    let first = enqueue(&mut connection, event(1).unwrap()).await.unwrap();
    let again = enqueue(&mut connection, event(2).unwrap()).await.unwrap();
    assert_eq!(again, Enqueued::Duplicate(first.id()));
    assert!(!first.is_duplicate());
    let payloads: Vec<String> =
        sqlx::query_scalar("SELECT payload FROM outbox_tasks").fetch_all(&mut connection).await.unwrap();
    assert_eq!(payloads, ["1"]);
}

#[tokio::test]
async fn many_events_keep_their_order_and_tell_duplicates_apart() {
    let mut connection = database().await;
    let keyed = |key: &str| NewEvent::new("Order", "keyed").idempotency_key(key);
    enqueue(&mut connection, keyed("old")).await.unwrap();

    let mut events: Vec<NewEvent> = (0..2500).map(|n| NewEvent::new("Order", n.to_string())).collect();
    events.insert(1, keyed("new"));
    events.insert(2, keyed("old"));
    events.insert(3, keyed("new"));
    let mut tx = connection.begin().await.unwrap();
    let enqueued = enqueue_all(&mut tx, events.clone()).await.unwrap();
    tx.commit().await.unwrap();

    let expected: Vec<Enqueued> = events
        .iter()
        .enumerate()
        .map(|(position, event)| match position {
            2 | 3 => Enqueued::Duplicate(event.event_id()),
            _ => Enqueued::Inserted(event.event_id()),
        })
        .collect();
    assert_eq!(enqueued, expected);
    let stored: Vec<String> = sqlx::query_scalar("SELECT id FROM outbox_tasks ORDER BY seq")
        .fetch_all(&mut connection)
        .await
        .unwrap();
    let mut in_order: Vec<String> =
        expected.iter().filter(|one| !one.is_duplicate()).map(|one| one.id().to_string()).collect();
    in_order.insert(0, keyed("old").event_id().to_string());
    assert_eq!(stored, in_order);
}

#[tokio::test]
async fn one_event_over_a_limit_keeps_all_out() {
    let mut connection = database().await;
    let events = [NewEvent::new("Order", "1"), NewEvent::new("Order", "")];
    let error = enqueue_all(&mut connection, events).await.unwrap_err();
    assert_eq!(error.to_string(), "aggregate_id: must not be empty");
    assert_eq!(count(&mut connection).await, 0);
    assert_eq!(enqueue_all(&mut connection, []).await.unwrap(), []);
}

#[tokio::test]
async fn the_outbox_may_be_in_an_attached_database() {
    let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
    sqlx::raw_sql("ATTACH ':memory:' AS \"my \"\"box\"").execute(&mut connection).await.unwrap();
    sqlx::raw_sql(
        "CREATE TABLE \"my \"\"box\".outbox_tasks (id TEXT UNIQUE, queue, aggregate_type, aggregate_id, event_type, \
         payload, content_type, headers, destination, max_retries, priority, available_at)",
    )
    .execute(&mut connection)
    .await
    .unwrap();
    let outbox = Outbox::in_schema("my \"box").unwrap();
    outbox.enqueue(&mut connection, NewEvent::new("Order", "1")).await.unwrap();
    outbox.enqueue_all(&mut connection, [NewEvent::new("Order", "2")]).await.unwrap();
    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM \"my \"\"box\".outbox_tasks")
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(rows, 2);
    assert!(Outbox::in_schema("").is_err());
    assert!(Outbox::in_schema(&"x".repeat(64)).is_err());
}

#[tokio::test]
async fn enqueueing_works_in_a_spawned_task() {
    let mut connection = database().await;
    let enqueueing = async move {
        let mut tx = connection.begin().await.unwrap();
        enqueue(&mut tx, NewEvent::new("Order", "1")).await.unwrap();
        enqueue(&mut *tx, NewEvent::new("Order", "1")).await.unwrap();
        enqueue_all(&mut tx, vec![NewEvent::new("Order", "1")]).await.unwrap();
        tx.commit().await.unwrap();
        count(&mut connection).await
    };
    assert_eq!(tokio::spawn(enqueueing).await.unwrap(), 3);
}
