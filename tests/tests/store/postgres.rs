//! What only PostgreSQL has: schemas, rows that move, server settings, plans.

use std::sync::Arc;
use std::time::Duration;

use outbox_postgres::{PostgresOptions, PostgresStore, migrations_sql};
use outbox_store::contract::{Harness, insert, row};
use outbox_store::{Claim, Claimed, QueuePolicy, SchemaState, Settled, Store, StoreError, Verdict};
use outbox_tests::harness::PostgresHarness;
use outbox_tests::postgres::shared;
use outbox_tests::proxy::{Proxy, Weather};
use sqlx::{AssertSqlSafe, Connection, PgConnection, raw_sql};

fn published(claim: &Claim) -> Vec<Verdict> {
    vec![Verdict::Published { receipt: None }; claim.events.len()]
}

async fn claim(store: &PostgresStore, policy: &Arc<QueuePolicy>) -> Claim {
    match store.claimer(Arc::clone(policy)).claim().await.expect("claim") {
        Claimed::Rows(claim) => claim,
        other => panic!("expected rows, got {other:?}"),
    }
}

async fn open(h: &PostgresHarness, timeout: Duration) -> PostgresStore {
    let mut options = PostgresOptions::from_url(h.url()).expect("url");
    options.statement_timeout = timeout;
    PostgresStore::connect(options).await.expect("connect")
}

async fn run(db: &mut PgConnection, sql: impl Into<String>) {
    raw_sql(AssertSqlSafe(sql.into())).execute(db).await.expect("sql");
}

/// The printed script, run by another tool in a schema of any name, is as good as `migrate`; an application that may only
/// insert is served from there, and a relay behind a transaction pooler too.
#[tokio::test]
async fn printed_migrations_in_an_odd_schema() {
    const SCHEMA: &str = "we\"ird 'x'";
    for server in shared() {
        let url = server.create_database(None).await.expect("database");
        let mut db = PgConnection::connect(&url).await.expect("connect");
        let mut options = PostgresOptions::from_url(&url).expect("url");
        SCHEMA.clone_into(&mut options.schema);
        options.behind_pooler = true;
        let store = PostgresStore::connect(options).await.expect("connect");
        assert_eq!(store.schema_state().await.expect("state"), SchemaState::Missing);
        run(&mut db, migrations_sql(SCHEMA).expect("script")).await;
        assert!(matches!(store.schema_state().await.expect("state"), SchemaState::Current { .. }));
        assert_eq!(store.migrate().await.expect("migrate"), [0; 0]);

        let role = format!("producer_{}", rand::random::<u32>());
        let insert = "INSERT INTO outbox_tasks (id, aggregate_type, aggregate_id, payload) \
                      VALUES (gen_random_uuid(), 'Order', '101', '{\"event\": \"OrderCreated\"}'::jsonb);";
        let late = "INSERT INTO outbox_tasks (aggregate_type, aggregate_id, available_at) VALUES ('Order', '102', now());";
        let quoted = "\"we\"\"ird 'x'\"";
        run(
            &mut db,
            format!(
                "create role {role}; grant usage on schema {quoted} to {role}; \
                 grant insert on {quoted}.outbox_tasks to {role}; set role {role}; set search_path = {quoted}; {insert} {late} \
                 reset role; reset search_path; drop owned by {role}; drop role {role};"
            ),
        )
        .await;
        let policy = Arc::new(QueuePolicy::named("default"));
        let claim = claim(&store, &policy).await;
        assert_eq!(claim.events.len(), 2);
        assert_eq!(store.settle(&policy, &claim, &published(&claim)).await.expect("settle"), Settled::Done);
        assert!(matches!(store.claimer(policy).claim().await.expect("claim"), Claimed::Empty { .. }));
    }
}

/// A stranger's update moves a row, a stranger's delete takes one away: the rest is settled all the same.
#[tokio::test]
async fn rows_that_moved_are_settled() {
    for server in shared() {
        let h = PostgresHarness::new(server).await;
        insert(&h, &[row("A", "A1"), row("B", "B1"), row("C", "C1")]).await;
        let store = open(&h, Duration::from_secs(10)).await;
        let policy = Arc::new(QueuePolicy::named("default"));
        let claim = claim(&store, &policy).await;
        h.edit("UPDATE outbox_tasks SET destination = 'elsewhere' WHERE aggregate_id = 'A'").await;
        h.edit("DELETE FROM outbox_tasks WHERE aggregate_id = 'B'").await;
        assert_eq!(store.settle(&policy, &claim, &published(&claim)).await.expect("settle"), Settled::Done);
        let rows = h.rows().await;
        assert_eq!(rows.len(), 2);
        assert!(rows.iter().all(|row| row.status == "PUBLISHED"), "{rows:?}");
        assert_eq!(h.claims().await, [0; 0]);
    }
}

/// A statement that cannot go on ends by the server's timeout, and leaves nothing behind.
#[tokio::test]
async fn waiting_for_a_lock_ends() {
    for server in shared() {
        let h = PostgresHarness::new(server).await;
        let seqs = insert(&h, &[row("A", "A1")]).await;
        let store = open(&h, Duration::from_millis(300)).await;
        let policy = Arc::new(QueuePolicy::named("default"));
        let claim = claim(&store, &policy).await;
        let mut stranger = h.begin().await;
        stranger.lock_row(seqs[0]).await;
        let refused = store.settle(&policy, &claim, &published(&claim)).await;
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
        assert_eq!(h.claims().await, [claim.token]);
        stranger.rollback().await;
        assert_eq!(store.settle(&policy, &claim, &published(&claim)).await.expect("settle"), Settled::Done);
    }
}

/// A link that goes silent while nothing is asked costs long work seconds, and not as long as the longest may take.
#[tokio::test]
async fn long_work_does_not_wait_for_a_link_that_went_silent() {
    let server = &shared()[0];
    let h = PostgresHarness::new(server).await;
    let link = Proxy::to(server.port()).await.expect("a proxy");
    let url = h.url().replace(&format!(":{}/", server.port()), &format!(":{}/", link.port()));
    let mut options = PostgresOptions::from_url(&url).expect("url");
    options.statement_timeout = Duration::from_secs(1);
    let store = PostgresStore::connect(options).await.expect("connect");
    store.stats().await.expect("stats");
    link.turn(Weather::Silent);
    assert!(tokio::time::timeout(Duration::from_millis(100), store.ping()).await.is_err(), "it is silent");
    link.turn(Weather::Clear);
    store.stats().await.expect("stats over a new link");
}

/// A call that is dropped half way does not leave its statement on a connection that somebody else then uses.
#[tokio::test]
async fn dropped_calls_leave_no_connection_behind() {
    for server in shared() {
        let h = PostgresHarness::new(server).await;
        let seqs = insert(&h, &[row("A", "A1")]).await;
        let store = open(&h, Duration::from_secs(10)).await;
        let policy = Arc::new(QueuePolicy::named("default"));
        let claim = claim(&store, &policy).await;
        let mut stranger = h.begin().await;
        stranger.lock_row(seqs[0]).await;
        for _ in 0..20 {
            let verdicts = published(&claim);
            let settle = store.settle(&policy, &claim, &verdicts);
            assert!(
                tokio::time::timeout(Duration::from_millis(20), settle).await.is_err(),
                "it cannot get the row"
            );
            store.ping().await.expect("ping");
        }
        stranger.rollback().await;
        // One of the dropped statements may still get the row; either way it is settled once.
        store.settle(&policy, &claim, &published(&claim)).await.expect("settle");
        assert_eq!(h.rows().await[0].status, "PUBLISHED");
    }
}

/// Under another isolation than READ COMMITTED a claim would not see what its lock waited for.
#[tokio::test]
async fn other_isolation_is_refused() {
    for server in shared() {
        let h = PostgresHarness::new(server).await;
        let url = h.url();
        let mut db = PgConnection::connect(url).await.expect("connect");
        run(
            &mut db,
            "do $$ begin execute format('alter database %I set default_transaction_isolation = %L', current_database(), \
             'repeatable read'); end $$",
        )
        .await;
        let refused = PostgresStore::connect(PostgresOptions::from_url(url).expect("url")).await.err();
        assert!(
            matches!(&refused, Some(StoreError::Unfit(text)) if text.contains("READ COMMITTED")),
            "{refused:?}"
        );
    }
}

/// A claim changes no indexed column: its updates are HOT. One index on status, and none would be.
#[tokio::test]
async fn claims_are_hot_updates() {
    for server in shared() {
        let h = PostgresHarness::new(server).await;
        let rows: Vec<_> = (0..200).map(|_| row("A", "A")).collect();
        insert(&h, &rows).await;
        let mut db = PgConnection::connect(h.url()).await.expect("connect");
        let mut transaction = db.begin().await.expect("begin");
        run(
            &mut transaction,
            "select count(*) from outbox_claim_v1('default', 1, 'r', 60000, 100, 1 << 24, false, 0, '-infinity', '{}', \
             '{}', '{}', false, 100)",
        )
        .await;
        let updates: (i64, i64) = sqlx::query_as(
            "select pg_stat_get_xact_tuples_updated('outbox_tasks'::regclass), \
             pg_stat_get_xact_tuples_hot_updated('outbox_tasks'::regclass)",
        )
        .fetch_one(&mut *transaction)
        .await
        .expect("counts");
        assert_eq!(updates, (100, 100));
    }
}

/// A row that only a scan from the beginning finds is delivered, and counted as a miss; others are not.
#[tokio::test]
async fn safety_scan_counts_what_only_it_finds() {
    for server in shared() {
        let h = PostgresHarness::new(server).await;
        insert(&h, &[row("A", "A1"), row("B", "B1"), row("C", "C1")]).await;
        let mut db = PgConnection::connect(h.url()).await.expect("connect");
        for (ordering, tail) in [("", ", false, 100"), ("_unordered", "")] {
            let missed = |full: bool| {
                AssertSqlSafe(format!(
                    "select outcome, missed from outbox_claim{ordering}_v1('default', {}, 'r', 60000, 100, 1 << 24, {full}, 3, \
                     '-infinity', '{{}}', '{{}}', '{{}}'{tail}) where outcome is not null",
                    rand::random::<i32>(),
                ))
            };
            let mut transaction = db.begin().await.expect("begin");
            let usual: (String, i64) =
                sqlx::query_as(missed(false)).fetch_one(&mut *transaction).await.expect("claim");
            transaction.rollback().await.expect("rollback");
            let mut transaction = db.begin().await.expect("begin");
            let full: (String, i64) =
                sqlx::query_as(missed(true)).fetch_one(&mut *transaction).await.expect("claim");
            transaction.rollback().await.expect("rollback");
            assert_eq!((usual, full), (("Rows".into(), 0), ("Rows".into(), 2)), "{ordering}");
        }
    }
}

/// A big backlog is not read whole to be counted: what lies beyond is estimated where it can be, else left out.
#[tokio::test]
async fn big_backlogs_are_estimated() {
    for server in shared() {
        let h = PostgresHarness::new(server).await;
        let store = open(&h, Duration::from_secs(10)).await;
        h.edit(
            "INSERT INTO outbox_tasks (aggregate_type, aggregate_id, available_at)
             SELECT 'Order', '1', CASE WHEN i > 30000 THEN now() + '1h'::interval END FROM generate_series(1, 45000) i",
        )
        .await;
        let stats = store.stats().await.expect("stats");
        // The 20,000 beyond the count and the 15,000 delayed ones behind them, then the 10,000 delayed ones that are counted.
        assert_eq!(stats[0].pending, 10_000 + 35_000 + 10_000, "{stats:?}");
        h.edit("DELETE FROM outbox_tasks WHERE seq > 9000").await;
        assert_eq!(store.stats().await.expect("stats")[0].pending, 9000);
    }
}
