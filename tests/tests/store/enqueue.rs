//! Enqueueing on PostgreSQL: what outbox-schema writes and what rights it needs, on every version there is.

use std::time::Duration;

use outbox_schema::{Enqueued, NewEvent, Outbox, enqueue, enqueue_all};
use outbox_tests::postgres::{Postgres, shared};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

const TABLES: &str = include_str!("../../../migrations/postgres/0001_outbox.sql");
const FUNCTION: &str = include_str!("../../../migrations/postgres/0007_enqueue.sql");

/// A database with the outbox in this schema, and a connection as a role that may only INSERT.
pub(crate) struct Database {
    pub(crate) owner: PgConnection,
    pub(crate) producer: PgConnection,
    /// As that role.
    pub(crate) url: String,
}

pub(crate) async fn database(server: &Postgres, schema: &str) -> Database {
    let url = server.create_database(None).await.unwrap();
    let mut owner = PgConnection::connect(&url).await.unwrap();
    let quoted = format!("\"{}\"", schema.replace('"', "\"\""));
    let role = format!("producer_of_{}", url.rsplit('/').next().unwrap());
    let setup = format!(
        "CREATE SCHEMA IF NOT EXISTS {quoted}; {}; {}; CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {quoted} TO {role};
         GRANT INSERT ON {quoted}.outbox_tasks TO {role}",
        TABLES.replace("{schema}", &quoted),
        FUNCTION.replace("{schema}", &quoted)
    );
    sqlx::raw_sql(AssertSqlSafe(setup)).execute(&mut owner).await.unwrap();
    let url = url.replace("postgres@", &format!("{role}@"));
    let producer = PgConnection::connect(&url).await.unwrap();
    Database { owner, producer, url }
}

impl Database {
    pub(crate) async fn column(&mut self, select: &'static str) -> Vec<String> {
        sqlx::query_scalar(select).fetch_all(&mut self.owner).await.unwrap()
    }
}

#[tokio::test]
async fn every_field_is_stored_by_a_role_that_may_only_insert() {
    for server in shared() {
        let mut db = database(server, "public").await;
        let event = NewEvent::new("Order", "101")
            .event_type("OrderCreated")
            .json_text("{\"total\": 1.0,  \"note\": \"ü\"}")
            .content_type("application/vnd.order+json")
            .header("traceparent", "00-1-2-01")
            .header("quoted", "a\"b\\c")
            .destination("orders.created")
            .queue("orders")
            .max_retries(2)
            .priority(-3);
        let id = event.event_id();
        let mut tx = db.producer.begin().await.unwrap();
        assert_eq!(enqueue(&mut tx, event).await.unwrap(), Enqueued::Inserted(id));
        tx.commit().await.unwrap();

        let row = sqlx::query(
            "SELECT *, payload::text AS json, headers::text AS head, status::text AS state FROM outbox_tasks",
        )
        .fetch_one(&mut db.owner)
        .await
        .unwrap();
        assert_eq!(row.get::<uuid::Uuid, _>("id"), id);
        assert_eq!(row.get::<String, _>("aggregate_type"), "Order");
        assert_eq!(row.get::<String, _>("aggregate_id"), "101");
        assert_eq!(row.get::<String, _>("event_type"), "OrderCreated");
        // Byte for byte, white space included.
        assert_eq!(row.get::<String, _>("json"), "{\"total\": 1.0,  \"note\": \"ü\"}");
        assert_eq!(row.get::<Option<Vec<u8>>, _>("payload_bytes"), None);
        assert_eq!(row.get::<String, _>("content_type"), "application/vnd.order+json");
        assert_eq!(row.get::<String, _>("head"), r#"{"traceparent":"00-1-2-01","quoted":"a\"b\\c"}"#);
        assert_eq!(row.get::<String, _>("destination"), "orders.created");
        assert_eq!(row.get::<String, _>("queue"), "orders");
        assert_eq!(row.get::<i32, _>("max_retries"), 2);
        assert_eq!(row.get::<i16, _>("priority"), -3);
        assert_eq!(row.get::<String, _>("state"), "PENDING");
    }
}

#[tokio::test]
async fn payloads_keep_their_kind() {
    for server in shared() {
        let mut db = database(server, "public").await;
        let events = [
            NewEvent::new("Order", "1").json("text").unwrap(),
            NewEvent::new("Order", "2").bytes([0, 0xff, b'\'', 0]),
            NewEvent::new("Order", "3"),
        ];
        enqueue_all(&mut db.producer, events).await.unwrap();
        let stored = db
            .column("SELECT concat_ws('|', payload::text, encode(payload_bytes, 'hex')) FROM outbox_tasks ORDER BY seq")
            .await;
        assert_eq!(stored, ["\"text\"", "00ff2700", ""]);
    }
}

#[tokio::test]
async fn a_delay_counts_from_the_databases_clock() {
    for server in shared() {
        let mut db = database(server, "public").await;
        let mut tx = db.producer.begin().await.unwrap();
        enqueue(&mut tx, NewEvent::new("Order", "now")).await.unwrap();
        enqueue(&mut tx, NewEvent::new("Order", "later").delay(Duration::from_secs(3600))).await.unwrap();
        tx.commit().await.unwrap();
        let waits = db
            .column(
                "SELECT CASE WHEN available_at IS NULL THEN 'ready'
                     WHEN available_at - created_at BETWEEN '1 hour' AND '1 hour 1 minute' THEN 'an hour' END
                 FROM outbox_tasks ORDER BY seq",
            )
            .await;
        assert_eq!(waits, ["ready", "an hour"]);
    }
}

#[tokio::test]
async fn an_idempotency_key_inserts_once() {
    for server in shared() {
        let mut db = database(server, "public").await;
        let event = |total: i32| {
            NewEvent::new("Invoice", "1").idempotency_key("invoice:1:send").json(&total).unwrap()
        };
        let first = enqueue(&mut db.producer, event(1)).await.unwrap();
        let mut tx = db.producer.begin().await.unwrap();
        let again = enqueue(&mut tx, event(2)).await.unwrap();
        // The transaction is still good.
        enqueue(&mut tx, NewEvent::new("Invoice", "2")).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(again, Enqueued::Duplicate(first.id()));
        assert_eq!(
            db.column("SELECT coalesce(payload::text, '') FROM outbox_tasks ORDER BY seq").await,
            ["1", ""]
        );
    }
}

#[tokio::test]
async fn the_same_id_comes_out_of_sql() {
    let sql = "SELECT encode(set_byte(set_byte(hash, 6, get_byte(hash, 6) & 15 | 128), 8, get_byte(hash, 8) & 63 | 128), 'hex')::uuid::text
        FROM substring(sha256(convert_to('default', 'UTF8') || '\\x00' || convert_to('invoice:123:send-email', 'UTF8')) FOR 16) AS hash";
    for server in shared() {
        let mut db = database(server, "public").await;
        let expected = outbox_schema::idempotent_id("default", "invoice:123:send-email").to_string();
        assert_eq!(db.column(sql).await, [expected]);
    }
}

#[tokio::test]
async fn many_events_keep_their_order_and_tell_duplicates_apart() {
    for server in shared() {
        let mut db = database(server, "public").await;
        let keyed = |key: &str| NewEvent::new("Order", "keyed").idempotency_key(key);
        enqueue(&mut db.producer, keyed("old")).await.unwrap();
        let plain: Vec<NewEvent> = (0..2500).map(|n| NewEvent::new("Order", n.to_string())).collect();
        // Without keys among them INSERT is right enough.
        let inserted = enqueue_all(&mut db.producer, plain.clone()).await.unwrap();
        assert!(inserted.iter().zip(&plain).all(|(one, event)| *one == Enqueued::Inserted(event.event_id())));

        let events = [keyed("new"), keyed("old"), keyed("new"), NewEvent::new("Order", "last")];
        let refused = enqueue_all(&mut db.producer, events.clone()).await.unwrap_err();
        assert!(refused.to_string().contains("permission denied"), "{refused}");
        let producer: Vec<String> =
            sqlx::query_scalar("SELECT current_user::text").fetch_all(&mut db.producer).await.unwrap();
        let grant = format!("GRANT SELECT (id) ON outbox_tasks TO {}", producer[0]);
        sqlx::raw_sql(AssertSqlSafe(grant)).execute(&mut db.owner).await.unwrap();
        let enqueued = enqueue_all(&mut db.producer, events.clone()).await.unwrap();
        let duplicates: Vec<bool> = enqueued.iter().map(|one| one.is_duplicate()).collect();
        assert_eq!(duplicates, [false, true, true, false]);
        assert!(enqueued.iter().zip(&events).all(|(one, event)| one.id() == event.event_id()));

        let mut in_order = vec!["keyed".to_owned()];
        in_order.extend((0..2500).map(|n| n.to_string()));
        in_order.extend(["keyed".to_owned(), "last".to_owned()]);
        assert_eq!(db.column("SELECT aggregate_id FROM outbox_tasks ORDER BY seq").await, in_order);
    }
}

#[tokio::test]
async fn the_outbox_may_be_in_a_schema_of_any_name() {
    for server in shared() {
        let mut db = database(server, "my \"out box").await;
        let outbox = Outbox::in_schema("my \"out box").unwrap();
        let mut tx = db.producer.begin().await.unwrap();
        outbox.enqueue(&mut tx, NewEvent::new("Order", "1")).await.unwrap();
        outbox.enqueue_all(&mut *tx, [NewEvent::new("Order", "2")]).await.unwrap();
        tx.commit().await.unwrap();
        let rows = db.column("SELECT aggregate_id FROM \"my \"\"out box\".outbox_tasks ORDER BY seq").await;
        assert_eq!(rows, ["1", "2"]);
        let unfound = enqueue(&mut db.producer, NewEvent::new("Order", "3")).await.unwrap_err();
        assert!(unfound.to_string().contains("does not exist"), "{unfound}");
    }
}

#[tokio::test]
async fn enqueueing_works_in_a_spawned_task() {
    let mut db = database(&shared()[0], "public").await;
    let enqueueing = async move {
        let mut tx = db.producer.begin().await.unwrap();
        enqueue(&mut tx, NewEvent::new("Order", "1")).await.unwrap();
        tx.rollback().await.unwrap();
        db.column("SELECT id::text FROM outbox_tasks").await.len()
    };
    assert_eq!(tokio::spawn(enqueueing).await.unwrap(), 0);
}
