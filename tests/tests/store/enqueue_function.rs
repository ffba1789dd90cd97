//! `outbox_enqueue`, the function that other languages call: as the crate outbox-schema does it, on every version there is.

use outbox_schema::{NewEvent, idempotent_id};
use outbox_store::SchemaState;
use outbox_store::contract::Harness;
use outbox_tests::harness::PostgresHarness;
use outbox_tests::postgres::shared;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use uuid::Uuid;

use crate::enqueue::database;

/// Calls the function with these arguments; `None` when the row was there already.
async fn call(connection: &mut PgConnection, arguments: &str) -> Result<Option<Uuid>, sqlx::Error> {
    let sql = format!("SELECT outbox_enqueue({arguments})");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await
}

#[tokio::test]
async fn every_argument_is_stored_for_a_role_that_may_only_insert() {
    for server in shared() {
        let mut db = database(server, "public").await;
        let id = Uuid::now_v7();
        let arguments = format!(
            "aggregate_id => '101', aggregate_type => 'Order', payload => '{{\"total\": 1.0,  \"note\": \"ü\"}}',
             event_type => 'OrderCreated', headers => '{{\"traceparent\":\"00-1-2-01\", \"quoted\":\"a\\\"b\\\\c\"}}',
             destination => 'orders.created', queue => 'orders', max_retries => 2, priority => -3,
             content_type => 'application/vnd.order+json', id => '{id}'"
        );
        assert_eq!(call(&mut db.producer, &arguments).await.unwrap(), Some(id));
        let row = sqlx::query(
            "SELECT *, payload::text AS json, headers::text AS head, status::text AS state FROM outbox_tasks",
        )
        .fetch_one(&mut db.owner)
        .await
        .unwrap();
        assert_eq!(row.get::<Uuid, _>("id"), id);
        let text = |column: &str| row.get::<String, _>(column);
        assert_eq!(text("aggregate_type"), "Order");
        assert_eq!(text("aggregate_id"), "101");
        assert_eq!(text("event_type"), "OrderCreated");
        // Byte for byte, white space included.
        assert_eq!(text("json"), "{\"total\": 1.0,  \"note\": \"ü\"}");
        assert_eq!(text("content_type"), "application/vnd.order+json");
        assert_eq!(text("head"), r#"{"traceparent":"00-1-2-01", "quoted":"a\"b\\c"}"#);
        assert_eq!(text("destination"), "orders.created");
        assert_eq!(text("queue"), "orders");
        assert_eq!(text("state"), "PENDING");
        assert_eq!(row.get::<i32, _>("max_retries"), 2);
        assert_eq!(row.get::<i16, _>("priority"), -3);
        assert_eq!(row.get::<Option<Vec<u8>>, _>("payload_bytes"), None);
    }
}

#[tokio::test]
async fn null_stands_for_the_default() {
    for server in shared() {
        let mut db = database(server, "public").await;
        call(&mut db.producer, "'Order', '1'").await.unwrap().unwrap();
        let all =
            "'Order', '1', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL";
        call(&mut db.producer, all).await.unwrap().unwrap();
        let rows = db
            .column(
                "SELECT concat_ws('|', event_type, payload::text, payload_bytes::text, headers::text, destination, queue,
                     available_at::text, max_retries::text, priority::text, content_type)
                 FROM outbox_tasks ORDER BY seq",
            )
            .await;
        assert_eq!(rows, ["default|0", "default|0"]);
    }
}

#[tokio::test]
async fn new_ids_are_uuid_v7_of_the_servers_clock() {
    for server in shared() {
        let mut db = database(server, "public").await;
        for _ in 0..20 {
            let id = call(&mut db.producer, "'Order', '1'").await.unwrap().unwrap();
            assert_eq!((id.get_version_num(), id.get_variant()), (7, uuid::Variant::RFC4122));
        }
        let off = db
            .column(
                "SELECT id::text FROM outbox_tasks WHERE abs(extract(epoch FROM created_at) * 1000 -
                     ('x' || translate(substr(id::text, 1, 13), '-', ''))::bit(48)::bigint) > 60000",
            )
            .await;
        assert_eq!(off, [""; 0]);
    }
}

#[tokio::test]
async fn payloads_keep_their_kind() {
    for server in shared() {
        let mut db = database(server, "public").await;
        for payload in ["'\"text\"'", "payload_bytes => '\\x00ff2700'", "NULL", "'null'"] {
            call(&mut db.producer, &format!("'Order', '1', {payload}")).await.unwrap();
        }
        let stored = db
            .column("SELECT concat_ws('|', payload::text, encode(payload_bytes, 'hex')) FROM outbox_tasks ORDER BY seq")
            .await;
        assert_eq!(stored, ["\"text\"", "00ff2700", "", "null"]);
        let no_json = call(&mut db.producer, "'Order', '1', '{'").await.unwrap_err();
        assert!(no_json.to_string().contains("type json"), "{no_json}");
    }
}

/// Keys give the same ids as in Rust, and so are duplicates whichever way the first came.
#[tokio::test]
async fn idempotency_keys_are_those_of_the_crate() {
    let long = "k".repeat(1024);
    let vectors =
        [("default", "invoice:123:send-email"), ("mail", "ü 漢字 🦀"), ("a'b", "x\\y"), ("q", long.as_str())];
    for server in shared() {
        let mut db = database(server, "public").await;
        for (queue, key) in vectors {
            let call = "SELECT outbox_enqueue('Invoice', '1', queue => $1, idempotency_key => $2)";
            let id: Option<Uuid> =
                sqlx::query_scalar(call).bind(queue).bind(key).fetch_one(&mut db.producer).await.unwrap();
            assert_eq!(id, Some(idempotent_id(queue, key)), "{queue} {key}");
            let event = NewEvent::new("Invoice", "1").queue(queue).idempotency_key(key);
            assert!(outbox_schema::enqueue(&mut db.producer, event).await.unwrap().is_duplicate(), "{key}");
        }
    }
}

#[tokio::test]
async fn a_duplicate_is_null_and_leaves_the_transaction_good() {
    for server in shared() {
        let mut db = database(server, "public").await;
        let keyed =
            |payload: i32| format!("'Invoice', '1', '{payload}', idempotency_key => 'invoice:1:send'");
        let first = call(&mut db.producer, &keyed(1)).await.unwrap().unwrap();
        let mut tx = db.producer.begin().await.unwrap();
        assert_eq!(call(&mut tx, &keyed(2)).await.unwrap(), None);
        assert_eq!(call(&mut tx, &format!("'Invoice', '1', id => '{first}'")).await.unwrap(), None);
        call(&mut tx, "'Invoice', '2'").await.unwrap().unwrap();
        tx.commit().await.unwrap();
        let mut tx = db.producer.begin().await.unwrap();
        call(&mut tx, "'Invoice', '3'").await.unwrap().unwrap();
        tx.rollback().await.unwrap();
        assert_eq!(
            db.column("SELECT coalesce(payload::text, '') FROM outbox_tasks ORDER BY seq").await,
            ["1", ""]
        );
    }
}

#[tokio::test]
async fn times_count_from_the_databases_clock() {
    for server in shared() {
        let mut db = database(server, "public").await;
        let mut tx = db.producer.begin().await.unwrap();
        sqlx::query("SELECT pg_sleep(0.05)").execute(&mut *tx).await.unwrap();
        for when in [
            "delay => '0'",
            "delay => '1 hour'",
            "available_at => clock_timestamp() + '1 hour'",
            "available_at => now()",
            "available_at => '-infinity'",
        ] {
            call(&mut tx, &format!("'Order', '1', {when}")).await.unwrap().unwrap();
        }
        tx.commit().await.unwrap();
        // now() is the transaction's start, which lies before the pause.
        let waits = db
            .column(
                "SELECT CASE WHEN available_at IS NULL THEN 'ready'
                     WHEN available_at - created_at BETWEEN '1 hour 0.05 seconds' AND '1 hour 1 minute' THEN 'an hour' END
                 FROM outbox_tasks ORDER BY seq",
            )
            .await;
        assert_eq!(waits, ["ready", "an hour", "an hour", "ready", "ready"]);
    }
}

#[tokio::test]
async fn an_event_at_every_limit_is_accepted() {
    for server in shared() {
        let mut db = database(server, "public").await;
        let arguments =
            "repeat('x', 255), repeat('x', 1024), payload_bytes => decode(repeat('00', 16777216), 'hex'),
            event_type => repeat('x', 255), queue => repeat('x', 128), destination => repeat('x', 1024),
            content_type => repeat('x', 255), idempotency_key => repeat('x', 1024), max_retries => 2147483647,
            priority => 32767, delay => '3650 days',
            headers => (SELECT json_object_agg(lpad(n::text, 255, '!#$%&''*+-.^_`|~'), repeat('x', 4096))
                        FROM generate_series(1, 64) n)";
        assert_eq!(
            call(&mut db.producer, arguments).await.unwrap(),
            Some(idempotent_id(&"x".repeat(128), &"x".repeat(1024)))
        );
        // A backslash and letters are no NUL.
        call(&mut db.producer, "'Order', '1', headers => '{\"a\": \"\\\\u0000\"}'").await.unwrap();
    }
}

/// The crate's own words where it has the same limit.
#[tokio::test]
async fn a_refusal_names_the_argument_and_the_way_out() {
    let cases = [
        ("NULL, '1'", "aggregate_type: must not be NULL"),
        ("'Order', NULL", "aggregate_id: must not be NULL"),
        ("'', '1'", "aggregate_type: must not be empty"),
        ("repeat('é', 128), '1'", "aggregate_type: 256 bytes, at most 255 are allowed"),
        ("'Order', repeat('x', 1025)", "aggregate_id: 1025 bytes, at most 1024 are allowed"),
        ("'Order', '1', event_type => ''", "event_type: must not be empty"),
        ("'Order', '1', event_type => repeat('x', 256)", "event_type: 256 bytes, at most 255 are allowed"),
        ("'Order', '1', queue => repeat('x', 129)", "queue: 129 bytes, at most 128 are allowed"),
        ("'Order', '1', queue => E'a\\nb'", "queue: must not contain CR or LF"),
        (
            "'Order', '1', destination => repeat('x', 1025)",
            "destination: 1025 bytes, at most 1024 are allowed",
        ),
        (
            "'Order', '1', content_type => repeat('x', 256)",
            "content_type: 256 bytes, at most 255 are allowed",
        ),
        (
            "'Order', '1', idempotency_key => repeat('x', 1025)",
            "idempotency_key: 1025 bytes, at most 1024 are allowed",
        ),
        ("'Order', '1', idempotency_key => ''", "idempotency_key: must not be empty"),
        ("'Order', '1', headers => '[\"a\"]'", "headers: is a JSON array"),
        ("'Order', '1', headers => '{\"a\": 1}'", "headers: \"a\" is a JSON number"),
        ("'Order', '1', headers => '{\"a b\": \"1\"}'", "headers: \"a b\" is no name"),
        ("'Order', '1', headers => '{\"\": \"1\"}'", "headers: \"\" is no name"),
        ("'Order', '1', headers => '{\"ä\": \"1\"}'", "headers: \"ä\" is no name"),
        (
            "'Order', '1', headers => '{\"Outbox-Id\": \"1\"}'",
            "headers: \"Outbox-Id\" is a name of the relay's own",
        ),
        ("'Order', '1', headers => '{\"a\": \"x\\ny\"}'", "headers: \"a\" must not contain CR or LF"),
        ("'Order', '1', headers => '{\"a\": \"\\\\\\u0000\"}'", "headers: must not contain NUL"),
        (
            "'Order', '1', headers => json_build_object(repeat('x', 256), '')",
            "headers: a name of 256 bytes, at most 255 are allowed",
        ),
        (
            "'Order', '1', headers => json_build_object('a', repeat('x', 4097))",
            "headers: \"a\" has 4097 bytes, at most 4096 are allowed",
        ),
        (
            "'Order', '1', headers => (SELECT json_object_agg('h' || n, '') FROM generate_series(1, 65) n)",
            "headers: 65 headers, at most 64 are allowed",
        ),
        ("'Order', '1', '1', payload_bytes => ''", "payload: given together with payload_bytes"),
        (
            "'Order', '1', payload_bytes => decode(repeat('00', 16777217), 'hex')",
            "payload: 16777217 bytes, at most 16777216 are allowed",
        ),
        (
            "'Order', '1', to_json(repeat('x', 16777215))",
            "payload: 16777217 bytes, at most 16777216 are allowed",
        ),
        ("'Order', '1', delay => '1 s', available_at => now()", "delay: given together with available_at"),
        ("'Order', '1', delay => '-1 s'", "delay: must not be negative"),
        ("'Order', '1', delay => '3650 days 1 s'", "delay: at most 3650 days are allowed"),
        ("'Order', '1', available_at => 'infinity'", "available_at: at most 3650 days are allowed"),
        ("'Order', '1', max_retries => -1", "max_retries: is -1, must not be negative"),
        ("'Order', '1', priority => 32768", "priority: is 32768, must be from -32768 to 32767"),
        (
            "'Order', '1', id => gen_random_uuid(), idempotency_key => 'a'",
            "id: given together with idempotency_key",
        ),
    ];
    for server in shared() {
        let mut db = database(server, "public").await;
        for (arguments, expected) in cases {
            let refused = call(&mut db.producer, arguments).await.expect_err(arguments);
            let refused = refused.into_database_error().expect("an error of the database");
            assert_eq!(refused.message(), expected, "{arguments}");
            assert_eq!(refused.code().as_deref(), Some("22023"), "{arguments}");
            let refused = refused.downcast_ref::<sqlx::postgres::PgDatabaseError>();
            assert!(refused.hint().is_some_and(|hint| hint.ends_with('.')), "{arguments}");
        }
        assert_eq!(db.column("SELECT id::text FROM outbox_tasks").await, [""; 0]);
    }
}

/// Everybody may call it, and nobody gets a right by it.
#[tokio::test]
async fn without_the_right_to_insert_it_inserts_nothing() {
    for server in shared() {
        let mut db = database(server, "public").await;
        let role: String =
            sqlx::query_scalar("SELECT current_user::text").fetch_one(&mut db.producer).await.unwrap();
        let revoke = format!("REVOKE INSERT ON outbox_tasks FROM {role}");
        sqlx::raw_sql(AssertSqlSafe(revoke)).execute(&mut db.owner).await.unwrap();
        let refused = call(&mut db.producer, "'Order', '1'").await.unwrap_err();
        assert!(refused.to_string().contains("permission denied for table outbox_tasks"), "{refused}");
    }
}

#[tokio::test]
async fn it_is_found_in_a_schema_of_any_name_whatever_the_session_says() {
    for server in shared() {
        let mut db = database(server, "my \"out box").await;
        // Neither a table of the same name nor an old way to write strings leads it astray.
        let session = "CREATE TEMP TABLE outbox_tasks (id uuid); SET standard_conforming_strings = off";
        sqlx::raw_sql(session).execute(&mut db.producer).await.unwrap();
        let id: Option<Uuid> = sqlx::query_scalar(
            "SELECT \"my \"\"out box\".outbox_enqueue('Order', '1', headers => '{\"a\": \"b\"}', idempotency_key => 'k')",
        )
        .fetch_one(&mut db.producer)
        .await
        .unwrap();
        assert_eq!(id, Some(idempotent_id("default", "k")));
        assert_eq!(db.column("SELECT aggregate_id FROM \"my \"\"out box\".outbox_tasks").await, ["1"]);
    }
}

/// A database from before it existed is behind, and gets it by `migrate`.
#[tokio::test]
async fn it_is_added_to_a_database_that_lacks_it() {
    for server in shared() {
        let h = PostgresHarness::new(server).await;
        h.edit("DROP FUNCTION outbox_enqueue").await;
        h.edit("DELETE FROM outbox_migrations WHERE version = 7").await;
        let store = h.store().await;
        assert!(matches!(store.schema_state().await.unwrap(), SchemaState::Behind { .. }));
        assert_eq!(store.migrate().await.unwrap(), [7]);
        let mut db = PgConnection::connect(h.url()).await.unwrap();
        call(&mut db, "'Order', '1'").await.unwrap().unwrap();
    }
}
