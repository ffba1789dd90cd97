//! Wake-up on PostgreSQL: producers notify while a claimer sleeps, and only then; nothing comes unseen.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_postgres::{PostgresOptions, PostgresStore};
use outbox_store::contract::{Harness, insert, row};
use outbox_store::{Claimed, Claimer, QueuePolicy, Store};
use outbox_tests::harness::PostgresHarness;
use outbox_tests::postgres::shared;
use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::timeout;

/// A wait that polling or its limit would end is far longer than the test.
const FOREVER: Duration = Duration::from_secs(3600);
const GIVE_UP: Duration = Duration::from_secs(60);

async fn store(h: &PostgresHarness) -> PostgresStore {
    PostgresStore::connect(PostgresOptions::from_url(h.url()).expect("options")).await.expect("connect")
}

fn claimer(store: &PostgresStore) -> Box<dyn Claimer> {
    store.claimer(Arc::new(QueuePolicy::named("default")))
}

async fn sleepers(h: &PostgresHarness) -> i64 {
    let sql =
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let mut db = PgConnection::connect(h.url()).await.expect("connect");
    sqlx::query_scalar(sql).fetch_one(&mut db).await.expect("locks")
}

async fn expect_empty(claimer: &mut Box<dyn Claimer>) {
    let claimed = claimer.claim().await.expect("claim");
    assert!(matches!(claimed, Claimed::Empty { .. }), "{claimed:?}");
}

async fn expect_rows(claimer: &mut Box<dyn Claimer>, rows: usize) {
    match claimer.claim().await.expect("claim") {
        Claimed::Rows(claim) => assert_eq!(claim.events.len(), rows),
        other => panic!("{other:?}"),
    }
}

/// Finds nothing and waits until its next wait will be a sleep.
async fn fall_asleep(h: &PostgresHarness, claimer: &mut Box<dyn Claimer>) {
    let end = Instant::now() + GIVE_UP;
    while sleepers(h).await == 0 {
        assert!(Instant::now() < end, "it does not fall asleep");
        expect_empty(claimer).await;
        timeout(GIVE_UP, claimer.wait(FOREVER)).await.expect("it slept without a last look");
    }
    expect_empty(claimer).await;
}

/// What was notified since the last call, up to a notification of the caller's own.
async fn notified(h: &PostgresHarness, listener: &mut PgListener) -> usize {
    h.edit("SELECT pg_notify('outbox_wake_up', 'mark')").await;
    let mut count = 0;
    while listener.recv().await.expect("notification").payload() != "mark" {
        count += 1;
    }
    count
}

async fn listen(h: &PostgresHarness) -> PgListener {
    let mut listener = PgListener::connect(h.url()).await.expect("connect");
    listener.listen("outbox_wake_up").await.expect("listen");
    listener
}

#[tokio::test]
async fn a_commit_wakes_a_sleeper_with_one_notification() {
    for server in shared() {
        let h = PostgresHarness::new(server).await;
        let (store, mut listener) = (store(&h).await, listen(&h).await);
        store.register_queues(&["default", "other"]).await.expect("register");
        let mut claimer = claimer(&store);
        fall_asleep(&h, &mut claimer).await;

        // Not for what was rolled back, nor for another queue.
        let mut writer = h.begin().await;
        writer.insert(&row("A", "A0")).await;
        writer.rollback().await;
        h.edit(
            "INSERT INTO outbox_tasks (queue, aggregate_type, aggregate_id) VALUES ('other', 'Order', 'B')",
        )
        .await;
        assert_eq!(notified(&h, &mut listener).await, 0);

        let role = format!("writer_{}", std::process::id());
        h.edit(&format!("CREATE ROLE {role}")).await;
        h.edit(&format!("GRANT INSERT ON outbox_tasks TO {role}")).await;
        let mut db = PgConnection::connect(h.url()).await.expect("connect");
        let as_role = format!("SET ROLE {role}");
        sqlx::query(AssertSqlSafe(as_role)).execute(&mut db).await.expect("role");
        let rows = "INSERT INTO outbox_tasks (aggregate_type, aggregate_id) SELECT 'Order', i::text FROM generate_series(1, 50) i";
        sqlx::query(rows).execute(&mut db).await.expect("insert");
        timeout(GIVE_UP, claimer.wait(FOREVER)).await.expect("nobody woke it");
        assert_eq!(notified(&h, &mut listener).await, 1);
        expect_rows(&mut claimer, 50).await;
        drop(db);
        h.edit(&format!("DROP OWNED BY {role}")).await;
        h.edit(&format!("DROP ROLE {role}")).await;
    }
}

#[tokio::test]
async fn nobody_notifies_while_all_are_awake() {
    for server in shared() {
        let h = PostgresHarness::new(server).await;
        let (store, mut listener) = (store(&h).await, listen(&h).await);
        store.register_queues(&["default"]).await.expect("register");
        let mut claimer = claimer(&store);
        insert(&h, &[row("A", "A1")]).await;
        assert_eq!(notified(&h, &mut listener).await, 0);

        expect_rows(&mut claimer, 1).await;
        h.edit("DELETE FROM outbox_claims").await;
        h.edit("DELETE FROM outbox_tasks").await;
        fall_asleep(&h, &mut claimer).await;
        // Work that goes on ends the sleep.
        for key in ["B", "C", "D"] {
            insert(&h, &[row(key, key)]).await;
            expect_rows(&mut claimer, 1).await;
        }
        let end = Instant::now() + GIVE_UP;
        while sleepers(&h).await > 0 {
            assert!(Instant::now() < end, "producers still notify");
            tokio::task::yield_now().await;
        }
        notified(&h, &mut listener).await;
        insert(&h, &[row("E", "E1")]).await;
        assert_eq!(notified(&h, &mut listener).await, 0);
    }
}

/// A transaction that began while all were awake does not notify. While it is open nobody falls asleep; what it commits
/// at the last moment is found by the look after falling asleep.
#[tokio::test]
async fn a_transaction_that_did_not_notify_is_not_overslept() {
    for server in shared() {
        let h = PostgresHarness::new(server).await;
        let (store, mut listener) = (store(&h).await, listen(&h).await);
        store.register_queues(&["default"]).await.expect("register");
        let mut claimer = claimer(&store);
        let mut writer = h.begin().await;
        writer.insert(&row("A", "A1")).await;
        for _ in 0..8 {
            expect_empty(&mut claimer).await;
            claimer.wait(FOREVER).await;
            assert_eq!(sleepers(&h).await, 0);
        }
        expect_empty(&mut claimer).await;
        writer.commit().await;
        assert_eq!(notified(&h, &mut listener).await, 0);
        timeout(GIVE_UP, claimer.wait(FOREVER)).await.expect("it overslept");
        assert_eq!(sleepers(&h).await, 1);
        expect_rows(&mut claimer, 1).await;
    }
}

#[tokio::test]
async fn a_sleeper_whose_session_is_lost_wakes_up_and_polls() {
    for server in shared() {
        let h = PostgresHarness::new(server).await;
        let store = store(&h).await;
        store.register_queues(&["default"]).await.expect("register");
        let mut claimer = claimer(&store);
        fall_asleep(&h, &mut claimer).await;
        h.edit(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'
             AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        )
        .await;
        timeout(GIVE_UP, claimer.wait(FOREVER)).await.expect("nobody woke it");
        insert(&h, &[row("A", "A1")]).await;
        expect_rows(&mut claimer, 1).await;
    }
}
