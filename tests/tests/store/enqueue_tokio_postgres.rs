//! Enqueueing through tokio-postgres: the same rows, rights and answers as through sqlx, on every version there is.

use std::time::Duration;

use outbox_schema::tokio_postgres::{Outbox, enqueue, enqueue_all};
use outbox_schema::{EnqueueError, Enqueued, NewEvent};
use outbox_tests::postgres::shared;
use sqlx::AssertSqlSafe;
use tokio_postgres::{Client, NoTls};

use crate::enqueue::{Database, database};

/// A client as the role that may only INSERT, which may also write the application's own table.
async fn client(db: &mut Database) -> Client {
    let (client, connection) = tokio_postgres::connect(&db.url, NoTls).await.unwrap();
    tokio::spawn(connection);
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS public.orders (id text PRIMARY KEY); GRANT INSERT ON public.orders TO PUBLIC")
        .execute(&mut db.owner)
        .await
        .unwrap();
    client
}

#[tokio::test]
async fn every_field_is_stored_by_a_role_that_may_only_insert() {
    for server in shared() {
        let mut db = database(server, "public").await;
        let client = client(&mut db).await;
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
                .delay(Duration::from_secs(3600))
        };
        enqueue(&client, event()).await.unwrap();
        outbox_schema::enqueue(&mut db.producer, event()).await.unwrap();
        enqueue(&client, NewEvent::new("Order", "101").bytes([0, 0xff, b'\''])).await.unwrap();
        outbox_schema::enqueue(&mut db.producer, NewEvent::new("Order", "101").bytes([0, 0xff, b'\'']))
            .await
            .unwrap();
        // Each is as what sqlx has written: all columns but identity and times.
        let rows = db
            .column(
                "SELECT (to_jsonb(t) - '{id,seq,created_at,updated_at,available_at}'::text[])::text || payload::text ||
                     (available_at - created_at BETWEEN '1 hour' AND '1 hour 1 minute')::text
                 FROM outbox_tasks t WHERE payload IS NOT NULL
                 UNION ALL SELECT (to_jsonb(t) - '{id,seq,created_at,updated_at}'::text[])::text
                 FROM outbox_tasks t WHERE payload IS NULL",
            )
            .await;
        assert_eq!(rows.len(), 4);
        assert_eq!((&rows[0], &rows[2]), (&rows[1], &rows[3]));
        assert!(rows[0].ends_with("{\"total\": 1.0,  \"note\": \"ü\"}true"), "{}", rows[0]);
    }
}

#[tokio::test]
async fn an_event_commits_and_rolls_back_with_the_business_row() {
    for server in shared() {
        let mut db = database(server, "public").await;
        let mut client = client(&mut db).await;
        for (order, commits) in [("kept", true), ("gone", false)] {
            let tx = client.transaction().await.unwrap();
            tx.execute("INSERT INTO orders (id) VALUES ($1)", &[&order]).await.unwrap();
            let event = NewEvent::new("Order", order);
            let id = event.event_id();
            assert_eq!(enqueue(&tx, event).await.unwrap(), Enqueued::Inserted(id));
            enqueue_all(&tx, [NewEvent::new("Order", order)]).await.unwrap();
            if commits { tx.commit().await.unwrap() } else { tx.rollback().await.unwrap() }
        }
        assert_eq!(db.column("SELECT aggregate_id FROM outbox_tasks").await, ["kept", "kept"]);
        assert_eq!(db.column("SELECT id FROM orders").await, ["kept"]);
    }
}

#[tokio::test]
async fn an_idempotency_key_inserts_once() {
    for server in shared() {
        let mut db = database(server, "public").await;
        let mut client = client(&mut db).await;
        let keyed = || NewEvent::new("Invoice", "1").idempotency_key("invoice:1:send");
        let first = enqueue(&client, keyed()).await.unwrap();
        let tx = client.transaction().await.unwrap();
        assert_eq!(enqueue(&tx, keyed()).await.unwrap(), Enqueued::Duplicate(first.id()));
        // The transaction is still good.
        enqueue(&tx, NewEvent::new("Invoice", "2")).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(db.column("SELECT aggregate_id FROM outbox_tasks ORDER BY seq").await, ["1", "2"]);
    }
}

#[tokio::test]
async fn many_events_keep_their_order_and_tell_duplicates_apart() {
    for server in shared() {
        let mut db = database(server, "public").await;
        let client = client(&mut db).await;
        let keyed = |key: &str| NewEvent::new("Order", "keyed").idempotency_key(key);
        let plain: Vec<NewEvent> = (0..2500).map(|n| NewEvent::new("Order", n.to_string())).collect();
        // Without keys among them INSERT is right enough.
        let inserted = enqueue_all(&client, plain.clone()).await.unwrap();
        assert!(inserted.iter().zip(&plain).all(|(one, event)| *one == Enqueued::Inserted(event.event_id())));

        let events = [keyed("new"), NewEvent::new("Order", "last"), keyed("new")];
        let refused = enqueue_all(&client, events.clone()).await.unwrap_err();
        assert!(matches!(refused, EnqueueError::TokioPostgres(_)));
        assert!(refused.to_string().contains("permission denied"), "{refused}");
        let role: String = client.query_one("SELECT current_user::text", &[]).await.unwrap().get(0);
        let grant = format!("GRANT SELECT (id) ON outbox_tasks TO {role}");
        sqlx::raw_sql(AssertSqlSafe(grant)).execute(&mut db.owner).await.unwrap();
        let enqueued = enqueue_all(&client, events.clone()).await.unwrap();
        let duplicates: Vec<bool> = enqueued.iter().map(|one| one.is_duplicate()).collect();
        assert_eq!(duplicates, [false, false, true]);
        assert!(enqueued.iter().zip(&events).all(|(one, event)| one.id() == event.event_id()));

        let mut in_order: Vec<String> = (0..2500).map(|n| n.to_string()).collect();
        in_order.extend(["keyed".to_owned(), "last".to_owned()]);
        assert_eq!(db.column("SELECT aggregate_id FROM outbox_tasks ORDER BY seq").await, in_order);
    }
}

#[tokio::test]
async fn limits_are_checked_before_anything_is_sent() {
    let mut db = database(&shared()[0], "public").await;
    let mut client = client(&mut db).await;
    let tx = client.transaction().await.unwrap();
    let events = [NewEvent::new("Order", "1"), NewEvent::new("Order", "")];
    let refused = enqueue_all(&tx, events).await.unwrap_err();
    assert_eq!(refused.to_string(), "aggregate_id: must not be empty");
    let refused = enqueue(&tx, NewEvent::new("Order", "1").json_text("{")).await.unwrap_err();
    assert!(refused.to_string().starts_with("payload: not valid JSON: "), "{refused}");
    enqueue(&tx, NewEvent::new("Order", "good")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(db.column("SELECT aggregate_id FROM outbox_tasks").await, ["good"]);
}

#[tokio::test]
async fn the_outbox_may_be_in_a_schema_of_any_name() {
    for server in shared() {
        let mut db = database(server, "my \"out box").await;
        let client = client(&mut db).await;
        let outbox = Outbox::in_schema("my \"out box").unwrap();
        outbox.enqueue(&client, NewEvent::new("Order", "1")).await.unwrap();
        outbox.enqueue_all(&client, [NewEvent::new("Order", "2")]).await.unwrap();
        let rows = db.column("SELECT aggregate_id FROM \"my \"\"out box\".outbox_tasks ORDER BY seq").await;
        assert_eq!(rows, ["1", "2"]);
        let unfound = enqueue(&client, NewEvent::new("Order", "3")).await.unwrap_err();
        assert!(unfound.to_string().contains("does not exist"), "{unfound}");
        assert!(Outbox::in_schema("").is_err());
    }
}

#[tokio::test]
async fn enqueueing_works_in_a_spawned_task() {
    let mut db = database(&shared()[0], "public").await;
    let mut client = client(&mut db).await;
    let enqueueing = async move {
        let tx = client.transaction().await.unwrap();
        enqueue(&tx, NewEvent::new("Order", "1")).await.unwrap();
        enqueue_all(&tx, vec![NewEvent::new("Order", "1")]).await.unwrap();
        tx.commit().await.unwrap();
    };
    tokio::spawn(enqueueing).await.unwrap();
    assert_eq!(db.column("SELECT aggregate_id FROM outbox_tasks").await, ["1", "1"]);
}
