//! Enqueueing through rusqlite: the same rows and answers as through sqlx.

use std::time::Duration;

use outbox_schema::rusqlite::{Outbox, enqueue, enqueue_all};
use outbox_schema::{EnqueueError, Enqueued, NewEvent};
use rusqlite::Connection;
use sqlx::Connection as _;
use tempfile::TempDir;

const TABLES: &str = include_str!("../../../migrations/sqlite/0001_outbox.sql");

fn database() -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch(TABLES).unwrap();
    connection.execute_batch("CREATE TABLE orders (id TEXT PRIMARY KEY)").unwrap();
    connection
}

fn column(connection: &Connection, select: &str) -> Vec<String> {
    let mut statement = connection.prepare(select).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

#[tokio::test]
async fn every_field_is_stored_as_through_sqlx() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("outbox.db");
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch(TABLES).unwrap();
    let url = format!("sqlite://{}", path.display());
    let mut other = sqlx::SqliteConnection::connect(&url).await.unwrap();
    let event = || {
        NewEvent::new("Order", "101")
            .event_type("OrderCreated")
            .json_text("{\"total\": 1.0,  \"note\": \"ü\"}")
            .content_type("application/vnd.order+json")
            .header("traceparent", "00-1-2-01")
            .header("quoted", "a\"b\\c")
            .destination("orders.created")
            .queue("orders")
            .max_retries(2)
            .priority(-3)
    };
    let bytes = || NewEvent::new("Order", "1").bytes(vec![0, 0xff, b'\'', 0]);
    // Rounded up to a millisecond.
    let delayed =
        || NewEvent::new("Order", "1").delay(Duration::from_millis(3_599_999) + Duration::from_micros(1));
    for event in [event(), bytes(), delayed()] {
        let id = event.event_id();
        assert_eq!(enqueue(&connection, event).unwrap(), Enqueued::Inserted(id));
    }
    outbox_schema::enqueue_all(&mut other, [event(), bytes(), delayed()]).await.unwrap();
    let rows = column(
        &connection,
        "SELECT quote(queue) || quote(aggregate_type) || quote(aggregate_id) || quote(event_type) || quote(payload) ||
             quote(content_type) || quote(headers) || quote(destination) || quote(max_retries) || quote(priority) ||
             quote(status) || quote(available_at - created_at) || length(id) FROM outbox_tasks ORDER BY seq",
    );
    assert_eq!(rows.len(), 6);
    assert_eq!(rows[..3], rows[3..]);
    assert!(rows[0].contains("{\"total\": 1.0,  \"note\": \"ü\"}"), "{}", rows[0]);
    assert!(rows[1].contains("X'00FF2700'"), "{}", rows[1]);
    assert!(rows[2].ends_with("360000036"), "{}", rows[2]);
}

#[test]
fn an_event_commits_and_rolls_back_with_the_business_row() {
    let mut connection = database();
    for (order, commits) in [("kept", true), ("gone", false)] {
        let tx = connection.transaction().unwrap();
        tx.execute("INSERT INTO orders (id) VALUES (?)", [order]).unwrap();
        enqueue(&tx, NewEvent::new("Order", order)).unwrap();
        enqueue_all(&tx, [NewEvent::new("Order", order), NewEvent::new("Order", order)]).unwrap();
        if commits { tx.commit().unwrap() } else { tx.rollback().unwrap() }
    }
    assert_eq!(column(&connection, "SELECT aggregate_id FROM outbox_tasks"), ["kept"; 3]);
    assert_eq!(column(&connection, "SELECT id FROM orders"), ["kept"]);
}

#[test]
fn an_idempotency_key_inserts_once() {
    let connection = database();
    let keyed =
        |total: i32| NewEvent::new("Invoice", "1").idempotency_key("invoice:1:send").json(&total).unwrap();
    let first = enqueue(&connection, keyed(1)).unwrap();
    assert_eq!(enqueue(&connection, keyed(2)).unwrap(), Enqueued::Duplicate(first.id()));
    assert_eq!(column(&connection, "SELECT payload FROM outbox_tasks"), ["1"]);
}

#[test]
fn many_events_keep_their_order_and_tell_duplicates_apart() {
    let mut connection = database();
    let keyed = |key: &str| NewEvent::new("Order", "keyed").idempotency_key(key);
    enqueue(&connection, keyed("old")).unwrap();
    let mut events: Vec<NewEvent> = (0..2500).map(|n| NewEvent::new("Order", n.to_string())).collect();
    events.insert(1, keyed("new"));
    events.insert(2, keyed("old"));
    events.insert(3, keyed("new"));
    let tx = connection.transaction().unwrap();
    let enqueued = enqueue_all(&tx, events.clone()).unwrap();
    tx.commit().unwrap();

    let expected: Vec<Enqueued> = (0..)
        .zip(&events)
        .map(|(position, event)| match position {
            2 | 3 => Enqueued::Duplicate(event.event_id()),
            _ => Enqueued::Inserted(event.event_id()),
        })
        .collect();
    assert_eq!(enqueued, expected);
    let mut in_order = vec![keyed("old").event_id().to_string()];
    in_order.extend(expected.iter().filter(|one| !one.is_duplicate()).map(|one| one.id().to_string()));
    assert_eq!(column(&connection, "SELECT id FROM outbox_tasks ORDER BY seq"), in_order);
}

#[test]
fn limits_are_checked_before_the_first_row() {
    let connection = database();
    let events = [NewEvent::new("Order", "1"), NewEvent::new("Order", "")];
    let refused = enqueue_all(&connection, events).unwrap_err();
    assert_eq!(refused.to_string(), "aggregate_id: must not be empty");
    assert_eq!(column(&connection, "SELECT id FROM outbox_tasks"), [""; 0]);
    assert_eq!(enqueue_all(&connection, []).unwrap(), []);
}

#[test]
fn the_outbox_may_be_in_an_attached_database() {
    let connection = Connection::open_in_memory().unwrap();
    let attach = "ATTACH ':memory:' AS \"my \"\"box\"; CREATE TABLE \"my \"\"box\".outbox_tasks (id TEXT UNIQUE, queue,
        aggregate_type, aggregate_id, event_type, payload, content_type, headers, destination, max_retries, priority,
        available_at)";
    connection.execute_batch(attach).unwrap();
    let outbox = Outbox::in_schema("my \"box").unwrap();
    outbox.enqueue(&connection, NewEvent::new("Order", "1")).unwrap();
    outbox.enqueue_all(&connection, [NewEvent::new("Order", "2")]).unwrap();
    assert_eq!(column(&connection, "SELECT aggregate_id FROM \"my \"\"box\".outbox_tasks"), ["1", "2"]);
    let empty = Connection::open_in_memory().unwrap();
    let unfound = enqueue(&empty, NewEvent::new("Order", "3")).unwrap_err();
    assert!(matches!(unfound, EnqueueError::Rusqlite(_)));
    assert!(unfound.to_string().contains("no such table"), "{unfound}");
    assert!(Outbox::in_schema(&"x".repeat(64)).is_err());
}
