//! A snapshot that somebody holds keeps vacuum from removing anything; claims must not read again and again what it leaves.
#![allow(clippy::print_stderr)] // the figures of a run

use std::sync::Arc;
use std::time::Duration;

use outbox_postgres::{PostgresOptions, PostgresStore};
use outbox_store::{Claimed, Claimer, Event, Published, QueuePolicy, Settled, Store, Verdict};
use outbox_tests::harness::PostgresHarness;
use outbox_tests::postgres::{Postgres, shared};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

const BATCH: i64 = 50;

/// So many batches are measured.
const MEASURED: i64 = 20;

/// How much dearer a row may get.
const MOST: f64 = 1.1;

/// Pages of the outbox's tables and indexes that were looked at by sessions that have ended. Not those of
/// `outbox_blocked_keys`: each time that a key is held leaves a dead row there, and the claims read them all.
const PAGES: &str = "SELECT sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)::bigint \
    FROM pg_statio_user_tables WHERE relname IN ('outbox_tasks', 'outbox_claims', 'outbox_queues')";

const OTHERS: &str = "SELECT count(*) FROM pg_stat_activity \
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()";

/// A row of a batch costs no more pages when ten times as many rows lie behind the pinned snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pinned_snapshot_does_not_make_claims_read_more() {
    for server in shared() {
        let few = pages_of_a_row(server, 20).await;
        let many = pages_of_a_row(server, 200).await;
        eprintln!("pages a row: {few:.1} after 20 batches, {many:.1} after 200");
        assert!(many < few * MOST, "pages a row: {few:.1} after 20 batches, {many:.1} after 200");
    }
}

/// Of the batches that come after so many.
async fn pages_of_a_row(server: &'static Postgres, batches: i64) -> f64 {
    let before = pages(server, batches).await;
    let after = pages(server, batches + MEASURED).await;
    (after - before) as f64 / (MEASURED * BATCH) as f64
}

/// That so many batches look at, from an empty table on.
async fn pages(server: &'static Postgres, batches: i64) -> i64 {
    let h = PostgresHarness::new(server).await;
    // It could remove nothing, but what it reads would be counted.
    for table in ["tasks", "claims", "blocked_keys", "queues"] {
        h.edit(&format!("ALTER TABLE outbox_{table} SET (autovacuum_enabled = false)")).await;
    }
    let mut pin = PgConnection::connect(h.url()).await.expect("connect");
    let mut pinned = pin.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ").await.expect("begin");
    sqlx::query("SELECT pg_current_xact_id(), count(*) FROM outbox_tasks")
        .fetch_one(&mut *pinned)
        .await
        .expect("pin");
    work(h.url(), batches).await;

    let mut observer = PgConnection::connect(h.url()).await.expect("connect");
    let ended = async {
        // The pin and the harness's own session stay.
        while number(&mut observer, OTHERS).await > 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), ended).await.expect("the sessions end");
    let pages = number(&mut observer, PAGES).await;
    pinned.rollback().await.expect("rollback");
    pages
}

async fn number(db: &mut PgConnection, sql: &'static str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(db).await.expect("a number")
}

/// Inserts, claims and settles so many batches on sessions that end with it.
async fn work(url: &str, batches: i64) {
    let store = PostgresStore::connect(PostgresOptions::from_url(url).expect("url")).await.expect("connect");
    let mut producer = PgConnection::connect(url).await.expect("connect");
    let mut policy = QueuePolicy::named("default");
    policy.published = Published::Delete;
    let policy = Arc::new(policy);
    let mut claimer = store.claimer(Arc::clone(&policy));
    for _ in 0..batches {
        let insert = "INSERT INTO outbox_tasks (aggregate_type, aggregate_id, payload) \
            SELECT 'Order', i::text, '{}' FROM generate_series(1, $1) i";
        sqlx::query(insert).bind(BATCH).execute(&mut producer).await.expect("insert");
        drain(claimer.as_mut(), &store, &policy).await;
    }
    drop(claimer);
    store.close().await;
    producer.close().await.expect("close");
}

async fn drain(claimer: &mut dyn Claimer, store: &PostgresStore, policy: &QueuePolicy) {
    while let Claimed::Rows(claim) = claimer.claim().await.expect("claim") {
        let verdicts: Vec<_> = claim.events.iter().map(verdict).collect();
        assert_eq!(store.settle(policy, &claim, &verdicts).await.expect("settle"), Settled::Done);
    }
}

/// Every thirtieth row is retried once.
fn verdict(event: &Event) -> Verdict {
    if event.seq % 30 == 0 && event.retry_count == 0 {
        Verdict::Retry { after: Duration::ZERO, error: "unclear".to_owned() }
    } else {
        Verdict::Published { receipt: None }
    }
}
