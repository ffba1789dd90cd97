//! The tables themselves: made, named, written in plain SQL, purged.

use std::time::Duration;

use processed_events::{Engine, Outcome, ProcessedEvents, SeqGuard, rusqlite, tokio_postgres};
use tokio::task::JoinSet;

use super::client::{Base, Client, LIBRARIES, Library};

const DAY: Duration = Duration::from_secs(24 * 3600);

// As docs/consuming.md shows them.
const POSTGRES: &str = "INSERT INTO processed_events (event_id, processed_at) VALUES ('e1', NOW()) ON CONFLICT (event_id) DO NOTHING";
const SQLITE: &str = "INSERT INTO processed_events (event_id, processed_at) \
    VALUES ('e1', CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)) ON CONFLICT (event_id) DO NOTHING";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_sql_and_the_helper_see_each_others_marks() {
    for base in Base::all().await {
        let statement = base.dialect(POSTGRES, SQLITE);
        for library in LIBRARIES {
            let mut client = base.connect(library).await;
            client.execute("DELETE FROM processed_events").await.unwrap();
            for _ in 0..2 {
                client.execute(statement).await.unwrap();
            }
            assert_eq!(client.once("e1").await.unwrap(), Outcome::Duplicate);
            assert_eq!(client.once("e2").await.unwrap(), Outcome::First);
            client.execute(&statement.replace("e1", "e2")).await.unwrap();
            assert_eq!(client.number("SELECT count(*) FROM processed_events").await, 2);
            // The time is the same, whoever wrote it.
            let spread = base.dialect(
                "SELECT count(*) FROM processed_events WHERE processed_at NOT BETWEEN now() - interval '1 min' AND now()",
                "SELECT count(*) FROM processed_events WHERE processed_at NOT BETWEEN (julianday('now') - 2440587.5) * 86400000 - 60000 AND (julianday('now') - 2440587.5) * 86400000",
            );
            assert_eq!(client.number(spread).await, 0);
        }
    }
}

/// What would defeat the table is refused: the same id twice, or never purged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_sql_cannot_store_what_would_not_be_found_again() {
    for base in Base::all().await {
        let mut client = base.connect(Library::Sqlx).await;
        let values: &[&str] = if base.is_postgres() {
            &["('', now())", "(NULL, now())", "('a', NULL)"]
        } else {
            &["('', 1)", "(NULL, 1)", "('a', NULL)", "(x'61', 1)", "('a', CURRENT_TIMESTAMP)", "('a', 1.5)"]
        };
        for value in values {
            let insert = format!(
                "INSERT INTO processed_events (event_id, processed_at) VALUES {value} ON CONFLICT (event_id) DO NOTHING"
            );
            assert!(client.execute(&insert).await.is_err(), "{value}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_may_migrate_at_once() {
    for base in Base::all().await {
        for round in 0..10 {
            let table = format!("round_{round}");
            let mut all = JoinSet::new();
            for n in 0..6 {
                let mut client = base.connect(LIBRARIES[n % 2]).await;
                let table = table.clone();
                all.spawn(async move { client.migrate(&table).await });
            }
            for migrated in all.join_all().await {
                migrated.unwrap();
            }
            let mut client = base.connect(Library::Sqlx).await;
            let indexes = base.dialect("pg_indexes WHERE indexname", "sqlite_master WHERE name");
            let index = format!("SELECT count(*) FROM {indexes} = '{table}_processed_at'");
            assert_eq!(client.number(&index).await, 1);
        }
    }
}

/// A name that needs quoting everywhere, in a schema that does too; the default table is another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_consumer_has_its_table() {
    let longest = "x".repeat(50);
    for base in Base::all().await {
        let schema =
            base.dialect("CREATE SCHEMA \"my \"\"schema\"", "ATTACH ':memory:' AS \"my \"\"schema\"");
        for (round, library) in LIBRARIES.into_iter().enumerate() {
            for name in ["Billing.\"processed", &longest] {
                let mut client = base.connect(library).await;
                if !base.is_postgres() || (round == 0 && name != longest) {
                    client.execute(schema).await.unwrap();
                }
                assert_eq!(client.once("e").await.unwrap().is_first(), round == 0 && name != longest);
                in_named_tables(&mut client, name, round).await;
            }
        }
    }
}

async fn in_named_tables(client: &mut Client, name: &str, round: usize) {
    let (schema, id) = ("my \"schema", uuid::Uuid::from_u128(round as u128));
    let outcomes: Vec<Outcome> = match client {
        Client::SqlxPostgres(connection) => {
            let (events, inner) = (ProcessedEvents::in_table(name), ProcessedEvents::in_schema(schema, name));
            let (events, inner) = (events.unwrap(), inner.unwrap());
            events.migrate(connection).await.unwrap();
            inner.migrate(connection).await.unwrap();
            SeqGuard::in_schema(schema, "seqs").unwrap().migrate(connection).await.unwrap();
            vec![
                events.once(connection, id).await.unwrap(),
                inner.once(connection, &id).await.unwrap(),
                inner.first_of(connection, [id.to_string()]).await.unwrap()[0],
            ]
        }
        Client::TokioPostgres(client) => {
            use tokio_postgres::ProcessedEvents;
            let (events, inner) = (ProcessedEvents::in_table(name), ProcessedEvents::in_schema(schema, name));
            let (events, inner) = (events.unwrap(), inner.unwrap());
            events.migrate(client).await.unwrap();
            inner.migrate(client).await.unwrap();
            vec![
                events.once(client, id).await.unwrap(),
                inner.once(client, &id).await.unwrap(),
                inner.first_of(client, [id.to_string()]).await.unwrap()[0],
            ]
        }
        Client::SqlxSqlite(connection) => {
            let (events, inner) = (ProcessedEvents::in_table(name), ProcessedEvents::in_schema(schema, name));
            let (events, inner) = (events.unwrap(), inner.unwrap());
            events.migrate(connection).await.unwrap();
            inner.migrate(connection).await.unwrap();
            SeqGuard::in_schema(schema, "seqs").unwrap().migrate(connection).await.unwrap();
            vec![
                events.once(connection, id).await.unwrap(),
                inner.once(connection, &id).await.unwrap(),
                inner.first_of(connection, [id.to_string()]).await.unwrap()[0],
            ]
        }
        Client::Rusqlite(connection) => {
            use rusqlite::ProcessedEvents;
            let (events, inner) = (ProcessedEvents::in_table(name), ProcessedEvents::in_schema(schema, name));
            let (events, inner) = (events.unwrap(), inner.unwrap());
            events.migrate(connection).unwrap();
            inner.migrate(connection).unwrap();
            vec![
                events.once(connection, id).unwrap(),
                inner.once(connection, id).unwrap(),
                inner.first_of(connection, [id.to_string()]).unwrap()[0],
            ]
        }
    };
    assert_eq!(outcomes, [Outcome::First, Outcome::First, Outcome::Duplicate], "{name}");
}

/// Rows of given ages, by the database's clock.
async fn fill(client: &mut Client, base: &Base, name: &str, rows: u32, hours: u32) {
    let insert = if base.is_postgres() {
        format!(
            "INSERT INTO processed_events SELECT '{name}' || n, now() - interval '{hours} hours' FROM generate_series(1, {rows}) n"
        )
    } else {
        format!(
            "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {rows})
             INSERT INTO processed_events SELECT '{name}' || n,
                 CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - {hours} * 3600000 FROM n"
        )
    };
    client.execute(&insert).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_takes_what_is_older_than_the_horizon_and_nothing_else() {
    for base in Base::all().await {
        for library in LIBRARIES {
            let mut client = base.connect(library).await;
            client.execute("DELETE FROM processed_events").await.unwrap();
            fill(&mut client, &base, "old", 250, 25).await;
            fill(&mut client, &base, "young", 30, 23).await;
            fill(&mut client, &base, "new", 5, 0).await;
            assert_eq!(client.purge(10 * DAY, 100).await.unwrap(), 0);
            assert_eq!(client.purge(DAY, 100).await.unwrap(), 250);
            assert_eq!(client.purge(DAY, 100).await.unwrap(), 0);
            assert_eq!(client.number("SELECT count(*) FROM processed_events").await, 35);
            assert_eq!(client.once("old1").await.unwrap(), Outcome::First);
            assert_eq!(client.once("young1").await.unwrap(), Outcome::Duplicate);
            // A whole number of batches ends too.
            assert_eq!(client.purge(DAY / 2, 15).await.unwrap(), 30);
            let error = client.purge(DAY, 0).await.unwrap_err().to_string();
            assert_eq!(error, "batch: must be 1 to 100000 rows");
        }
    }
}

/// Rows that another purge has in hand are left to it; a consumer that meets one waits and is first.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn purges_share_the_work_and_consumers_wait_for_them() {
    for base in Base::all().await.into_iter().filter(Base::is_postgres) {
        let (mut a, mut b) = (base.connect(Library::Sqlx).await, base.connect(Library::Native).await);
        fill(&mut a, &base, "old", 100, 25).await;
        // A purge that waited would wait for ever.
        b.execute("SET lock_timeout = '10s'").await.unwrap();
        a.execute("BEGIN; DELETE FROM processed_events WHERE event_id IN ('old1', 'old2')").await.unwrap();
        assert_eq!(b.purge(DAY, 10).await.unwrap(), 98);
        let mut c = base.connect(Library::Sqlx).await;
        let waiting = tokio::spawn(async move { c.once("old1").await });
        b.until_waiting(1).await;
        a.execute("COMMIT").await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap(), Outcome::First);
    }
}

const PURGE_POSTGRES: &str = include_str!("../../../../crates/processed-events/src/sql/postgres_purge.sql");
const PURGE_SQLITE: &str = include_str!("../../../../crates/processed-events/src/sql/sqlite_purge.sql");

/// With a large table of which little is old, a purge reads little.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_finds_old_rows_by_the_index() {
    for base in Base::all().await {
        let mut client = base.connect(Library::Sqlx).await;
        fill(&mut client, &base, "young", 20_000, 1).await;
        fill(&mut client, &base, "old", 50, 25).await;
        let plan: Vec<String> = match &mut client {
            Client::SqlxPostgres(connection) => {
                sqlx::raw_sql("ANALYZE processed_events").execute(&mut *connection).await.unwrap();
                let purge = format!("EXPLAIN {}", PURGE_POSTGRES.replace("{table}", "processed_events"));
                let explain = sqlx::query_scalar(sqlx::AssertSqlSafe(purge)).bind(24 * 3600 * 1_000_000_i64);
                explain.bind(1000_i64).fetch_all(connection).await.unwrap()
            }
            Client::SqlxSqlite(connection) => {
                let purge =
                    format!("EXPLAIN QUERY PLAN {}", PURGE_SQLITE.replace("{table}", "processed_events"));
                let explain = sqlx::query_as(sqlx::AssertSqlSafe(purge)).bind(24 * 3600 * 1000_i64);
                let rows: Vec<(i64, i64, i64, String)> =
                    explain.bind(1000_i64).fetch_all(connection).await.unwrap();
                rows.into_iter().map(|row| row.3).collect()
            }
            _ => unreachable!("sqlx was asked for"),
        };
        let plan = plan.join("\n");
        let (index, scan) = ("processed_events_processed_at", base.dialect("Seq Scan", "SCAN"));
        assert!(plan.contains(index) && !plan.contains(scan), "{plan}");
    }
}

/// A migration tool runs what `sql` prints.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_printed_migration_makes_the_same_table() {
    for base in Base::all().await {
        let engine = if base.is_postgres() { Engine::Postgres } else { Engine::Sqlite };
        for library in LIBRARIES {
            let mut client = base.connect(library).await;
            client.execute("DROP TABLE processed_events; DROP TABLE IF EXISTS processed_seqs").await.unwrap();
            let missing = client.once("e").await.unwrap_err();
            assert!(
                !missing.is_try_again() && missing.to_string().starts_with("the database failed"),
                "{missing}"
            );
            for _ in 0..2 {
                client.execute(&ProcessedEvents::default().sql(engine)).await.unwrap();
                client.execute(&SeqGuard::default().sql(engine)).await.unwrap();
            }
            client.migrate("processed_events").await.unwrap();
            assert!(client.once("e").await.unwrap().is_first());
            assert!(client.advance("a", 1).await.unwrap().is_in_order());
        }
    }
}
