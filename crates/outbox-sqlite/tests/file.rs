//! What is particular to SQLite: the file, its schema, several processes on it, and text that is not what it seems.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outbox_sqlite::{SqliteOptions, SqliteStore, migrations_sql};
use outbox_store::{Claimed, Payload, QueuePolicy, SchemaState, Store, StoreError, Verdict};
use rusqlite::Connection;
use tempfile::TempDir;

struct Database {
    dir: TempDir,
}

impl Database {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a directory") }
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("outbox.db")
    }

    fn options(&self) -> SqliteOptions {
        SqliteOptions { create: true, ..SqliteOptions::new(self.path(), "relay") }
    }

    async fn store(&self) -> SqliteStore {
        let store = SqliteStore::open(self.options()).await.expect("open");
        store.migrate().await.expect("migrate");
        store
    }

    /// An application's connection.
    fn application(&self) -> Connection {
        Connection::open(self.path()).expect("open")
    }
}

fn insert(conn: &Connection, key: &str, payload: impl rusqlite::ToSql) -> i64 {
    conn.execute(
        "INSERT INTO outbox_tasks (aggregate_type, aggregate_id, payload) VALUES ('T', ?1, ?2)",
        (key, payload),
    )
    .expect("insert");
    conn.last_insert_rowid()
}

fn policy() -> Arc<QueuePolicy> {
    Arc::new(QueuePolicy::named("default"))
}

async fn unfit(options: SqliteOptions) -> String {
    match SqliteStore::open(options).await.map(drop) {
        Err(StoreError::Unfit(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_used_says_what_to_do() {
    let database = Database::new();
    let at = |path: &Path| SqliteOptions::new(path, "relay");
    let missing = unfit(at(&database.path())).await;
    assert!(missing.contains("does not exist") && missing.contains("outbox migrate up"), "{missing}");
    assert!(!database.path().exists(), "opening must not create the file");
    let create = |path: &Path| SqliteOptions { create: true, ..at(path) };
    let no_directory = unfit(create(&database.dir.path().join("no/outbox.db"))).await;
    assert!(no_directory.contains("create the directory"), "{no_directory}");
    let directory = unfit(at(database.dir.path())).await;
    assert!(directory.contains("is a directory"), "{directory}");
    std::fs::write(database.path(), "This is a text file, and a long one, too. ".repeat(100)).expect("write");
    let text = unfit(at(&database.path())).await;
    assert!(text.contains("not a SQLite database") && text.contains("outbox.db"), "{text}");
}

#[tokio::test]
async fn a_database_without_tables_points_to_the_migration() {
    let database = Database::new();
    let store = SqliteStore::open(database.options()).await.expect("open");
    let error = store.claimer(policy()).claim().await.expect_err("no tables");
    assert!(matches!(&error, StoreError::Unfit(text) if text.contains("outbox migrate up")), "{error:?}");
}

#[tokio::test]
async fn the_printed_migrations_are_the_migrations() {
    let database = Database::new();
    database.application().execute_batch(&migrations_sql()).expect("runs");
    let store = SqliteStore::open(database.options()).await.expect("open");
    let state = store.schema_state().await.expect("state");
    assert!(matches!(state, SchemaState::Current { .. }), "{state:?}");
    assert_eq!(store.migrate().await.expect("migrate"), [0; 0]);
}

#[tokio::test]
async fn a_database_that_is_not_wal_is_refused() {
    let database = Database::new();
    let store = database.store().await;
    store.close().await;
    let mode: String = database
        .application()
        .query_row("PRAGMA journal_mode = DELETE", [], |row| row.get(0))
        .expect("pragma");
    assert_eq!(mode, "delete");
    let store = SqliteStore::open(database.options()).await.expect("open");
    let error = store.schema_state().await.expect_err("not WAL");
    assert!(error.to_string().contains("must be WAL"), "{error}");
    store.migrate().await.expect("sets WAL again");
    assert!(matches!(store.schema_state().await.expect("state"), SchemaState::Current { .. }));
}

#[tokio::test]
async fn a_newer_breaking_migration_makes_this_binary_refuse() {
    let database = Database::new();
    let store = database.store().await;
    let add = "INSERT INTO _outbox_migrations (version, name, breaking) VALUES (?1, 'later', ?2)";
    database.application().execute(add, (98, false)).expect("insert");
    assert_eq!(store.schema_state().await.expect("state"), SchemaState::Current { applied: 98 });
    database.application().execute(add, (99, true)).expect("insert");
    assert_eq!(store.schema_state().await.expect("state"), SchemaState::Newer { applied: 99, known: 1 });
}

#[tokio::test]
async fn what_the_relay_could_not_read_is_refused_at_insert() {
    let database = Database::new();
    database.store().await;
    let conn = database.application();
    for (columns, values, constraint) in [
        ("id", "'not-a-uuid'", "outbox_id_must_be_a_uuid"),
        ("id", "x'0198a5c4000070008000000000000001'", "outbox_id_must_be_a_uuid"),
        ("payload", "17", "outbox_payload_must_be_text_blob_or_null"),
        ("available_at", "'2026-11-30T12:00:00Z'", "outbox_times_must_be_integer_milliseconds"),
        ("status", "'pending'", "outbox_status_unknown"),
        ("max_retries", "-1", "outbox_counts_must_be_whole_numbers_from_0"),
        ("priority", "40000", "outbox_priority_must_be_a_small_integer"),
    ] {
        let insert = format!(
            "INSERT INTO outbox_tasks (aggregate_type, aggregate_id, {columns}) VALUES ('T', '1', {values})"
        );
        let error = conn.execute(&insert, []).expect_err(&insert);
        assert!(error.to_string().contains(constraint), "{insert}: {error}");
    }
    let one = "INSERT INTO outbox_tasks (id, aggregate_type, aggregate_id) VALUES (?1, 'T', '1')";
    conn.execute(one, ["0198A5C4-0000-7000-8000-00000000000a"]).expect("either case");
    conn.execute(one, ["0198a5c4-0000-7000-8000-00000000000A"]).expect_err("the same id");
}

#[tokio::test]
async fn text_keeps_its_bytes_and_only_json_is_called_json() {
    let database = Database::new();
    let store = database.store().await;
    let conn = database.application();
    let raw = |hex: &str| {
        let insert = format!(
            "INSERT INTO outbox_tasks (aggregate_type, aggregate_id, payload)
             VALUES ('T', CAST(x'6b00ff' AS TEXT), CAST(x'{hex}' AS TEXT))"
        );
        conn.execute(&insert, []).expect("insert");
    };
    insert(&conn, "json", "{\"a\" : 1.0}\n");
    insert(&conn, "text", "{\"a\" : ");
    insert(&conn, "blob", b"{}".as_slice());
    insert(&conn, "none", rusqlite::types::Null);
    raw("22ff22");
    raw("610062");
    let Claimed::Rows(claim) = store.claimer(policy()).claim().await.expect("claim") else {
        panic!("no rows")
    };
    let payloads: Vec<_> = claim.events.iter().map(|event| event.payload.clone()).collect();
    let bytes = |text: &'static [u8]| bytes::Bytes::from_static(text);
    let expected = [
        Payload::Json(bytes(b"{\"a\" : 1.0}\n")),
        Payload::Text(bytes(b"{\"a\" : ")),
        Payload::Binary(bytes(b"{}")),
        Payload::Tombstone,
        Payload::Text(bytes(b"\"\xff\"")),
        Payload::Text(bytes(b"a\0b")),
    ];
    assert_eq!(payloads, expected);
    // A key that is not UTF-8 can be blocked and released like any other.
    let retry = Verdict::Retry { after: Duration::ZERO, error: "no".to_owned() };
    let verdicts: Vec<_> =
        (0..6).map(|n| if n < 4 { Verdict::Published { receipt: None } } else { retry.clone() }).collect();
    store.settle(&policy(), &claim, &verdicts).await.expect("settle");
    let published = Verdict::Published { receipt: None };
    let mut claimer = store.claimer(policy());
    for seq in [5, 6] {
        let claim = loop {
            match claimer.claim().await.expect("claim") {
                Claimed::Rows(claim) => break claim,
                Claimed::Busy | Claimed::Empty { .. } => tokio::task::yield_now().await,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(claim.events.iter().map(|event| event.seq).collect::<Vec<_>>(), [seq]);
        store.settle(&policy(), &claim, std::slice::from_ref(&published)).await.expect("settle");
    }
}

#[tokio::test]
async fn waiting_ends_with_an_applications_commit_and_not_with_own_settles() {
    let database = Database::new();
    let store = Arc::new(database.store().await);
    let conn = database.application();
    insert(&conn, "1", "{}");
    let mut claimer = store.claimer(policy());
    let Claimed::Rows(claim) = claimer.claim().await.expect("claim") else { panic!("no rows") };
    store.settle(&policy(), &claim, &[Verdict::Published { receipt: None }]).await.expect("settle");
    assert!(matches!(claimer.claim().await.expect("claim"), Claimed::Empty { next_due: None }));
    let at_most = Duration::from_millis(50);
    let started = std::time::Instant::now();
    claimer.wait(at_most).await;
    assert!(started.elapsed() >= at_most, "nothing has happened");

    let (sender, receiver) = tokio::sync::oneshot::channel();
    let waiting = tokio::spawn(async move {
        sender.send(()).expect("the test waits");
        claimer.wait(Duration::from_secs(3600)).await;
        claimer.claim().await
    });
    receiver.await.expect("started");
    insert(&conn, "2", "{}");
    assert!(matches!(waiting.await.expect("wait").expect("claim"), Claimed::Rows(_)));
}

#[tokio::test]
async fn a_held_claimer_hears_of_the_settle() {
    let database = Database::new();
    let store = database.store().await;
    insert(&database.application(), "1", "{}");
    let (mut first, mut second) = (store.claimer(policy()), store.claimer(policy()));
    let Claimed::Rows(claim) = first.claim().await.expect("claim") else { panic!("no rows") };
    assert!(matches!(second.claim().await.expect("claim"), Claimed::Held));
    let settle = async {
        store.settle(&policy(), &claim, &[Verdict::Published { receipt: None }]).await.expect("settle");
    };
    tokio::join!(second.wait(Duration::from_secs(3600)), settle);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_held_by_another_is_waited_for_and_then_named() {
    let database = Database::new();
    drop(database.store().await);
    let options = SqliteOptions { busy_timeout: Duration::from_millis(20), ..database.options() };
    let store = SqliteStore::open(options).await.expect("open");
    let conn = database.application();
    conn.execute_batch("BEGIN IMMEDIATE").expect("begin");
    insert(&conn, "1", "{}");
    let error = store.claimer(policy()).claim().await.expect_err("locked");
    assert!(matches!(&error, StoreError::Conflict(_)), "{error:?}");
    assert!(error.to_string().contains("store.sqlite.busy_timeout"), "{error}");
    assert!(!store.stats().await.expect("readers do not wait").is_empty());

    let patient = SqliteStore::open(database.options()).await.expect("open");
    let mut claimer = patient.claimer(policy());
    let claiming = tokio::spawn(async move { claimer.claim().await });
    conn.execute_batch("COMMIT").expect("commit");
    assert!(matches!(claiming.await.expect("claim").expect("claim"), Claimed::Rows(_)));
}

#[tokio::test]
async fn a_cancelled_call_leaves_no_transaction_open() {
    let database = Database::new();
    let store = database.store().await;
    let conn = database.application();
    for n in 0..100 {
        insert(&conn, &n.to_string(), "{}");
    }
    let mut claimer = store.claimer(policy());
    for polls in 0..20 {
        let mut claim = Box::pin(claimer.claim());
        for _ in 0..polls {
            if futures_util::poll!(&mut claim).is_ready() {
                break;
            }
        }
        drop(claim);
        // The application can write as soon as the store is idle again.
        store.register_queues(&["default"]).await.expect("the writer is free");
        insert(&conn, "more", "{}");
    }
}

#[tokio::test]
async fn parked_followers_go_when_a_queue_becomes_unordered() {
    let database = Database::new();
    let store = database.store().await;
    let conn = database.application();
    insert(&conn, "1", "{}");
    insert(&conn, "1", "{}");
    let mut ordered = store.claimer(Arc::new(QueuePolicy { batch: 1, ..QueuePolicy::named("default") }));
    let Claimed::Rows(claim) = ordered.claim().await.expect("claim") else { panic!("no rows") };
    let retry = Verdict::Retry { after: Duration::from_secs(3600), error: "no".to_owned() };
    store.settle(&policy(), &claim, &[retry]).await.expect("settle");
    assert!(matches!(ordered.claim().await.expect("claim"), Claimed::Busy), "the follower is parked");
    let loose = QueuePolicy { ordering: outbox_store::Ordering::None, ..QueuePolicy::named("default") };
    let Claimed::Rows(claim) = store.claimer(Arc::new(loose)).claim().await.expect("claim") else {
        panic!("no rows")
    };
    assert_eq!(claim.events.iter().map(|event| event.seq).collect::<Vec<_>>(), [2]);
    let blocks: i64 =
        conn.query_row("SELECT count(*) FROM outbox_blocked_keys", [], |row| row.get(0)).expect("count");
    assert_eq!(blocks, 0);
}
