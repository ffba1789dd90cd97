//! Rows from any language: the documented INSERT, as it stands, through the tools that people have.

use std::path::Path;
use std::process::{Command, Stdio};

use outbox_store::Payload;
use outbox_store::contract::{Harness, Relay};
use outbox_tests::harness::{PostgresHarness, SqliteHarness};
use outbox_tests::postgres::shared;

const POSTGRES: &str = "INSERT INTO outbox_tasks (id, aggregate_type, aggregate_id, payload) \
    VALUES (gen_random_uuid(), 'Order', '101', '{\"event\": \"OrderCreated\"}'::jsonb);";
const SQLITE: &str = "INSERT INTO outbox_tasks (id, aggregate_type, aggregate_id, payload) \
    VALUES ('01980a3c-5f5e-7c3b-9c57-0c5b1f1e7a01', 'Order', '101', '{\"event\": \"OrderCreated\"}');";

/// Runs a tool; false, and the test is skipped, when there is none.
fn run(program: &str, args: &[&str]) -> bool {
    match Command::new(program).args(args).stdin(Stdio::null()).output() {
        Ok(output) => {
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
            true
        }
        Err(error) => {
            outbox_tests::skip(&format!("{program} cannot be run ({error}); install it"));
            false
        }
    }
}

async fn delivered(h: &dyn Harness) {
    let mut relay = Relay::new(h, 10).await;
    let claim = relay.rows().await;
    let event = &claim.events[0];
    assert_eq!(
        (claim.events.len(), event.aggregate_type.as_str(), event.aggregate_id.as_str()),
        (1, "Order", "101")
    );
    assert_eq!(event.payload, Payload::Json("{\"event\": \"OrderCreated\"}".into()));
    relay.publish(&claim).await;
}

#[tokio::test]
async fn postgres_through_psql_by_a_role_that_may_only_insert() {
    for server in shared() {
        let h = PostgresHarness::new(server).await;
        let role = format!("plain_{}", rand::random::<u32>());
        h.edit(&format!("CREATE ROLE {role} LOGIN")).await;
        h.edit(&format!("GRANT INSERT ON outbox_tasks TO {role}")).await;
        let url = h.url().replace("//postgres@", &format!("//{role}@"));
        if run("psql", &["-X", "-v", "ON_ERROR_STOP=1", "-d", &url, "-c", POSTGRES]) {
            delivered(&h).await;
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[tokio::test]
async fn sqlite_through_its_shell() {
    let h = SqliteHarness::new().await;
    if run("sqlite3", &[text(&h.path()), SQLITE]) {
        delivered(&h).await;
    }
}

#[tokio::test]
async fn sqlite_through_python() {
    let h = SqliteHarness::new().await;
    let script = "import sqlite3, sys\nwith sqlite3.connect(sys.argv[1]) as db: db.execute(sys.argv[2])";
    if run("python3", &["-c", script, text(&h.path()), SQLITE]) {
        delivered(&h).await;
    }
}
