//! What operators do: look, retry, give up, pause.

use std::process::Stdio;

use serde_json::json;

use crate::bench::Bench;

/// An event whose headers cannot be read: FAILED at its first delivery.
fn with_a_failed_event() -> Bench {
    let bench = Bench::migrated();
    bench.sql(
        "INSERT INTO outbox_tasks (id, aggregate_type, aggregate_id, payload, headers) \
         VALUES ('0198f0c2-7e1a-7c3e-9d4e-2f1b6a5c8d90', 'Order', '1', '{}', 'no headers')",
    );
    bench.run(&["run", "--once"]).good();
    bench
}

const FAILED_ID: &str = "0198f0c2-7e1a-7c3e-9d4e-2f1b6a5c8d90";

#[test]
fn help_is_for_people() {
    let bench = Bench::new();
    let help = bench.run(&["--help"]).good();
    for command in [
        "dev", "run", "migrate", "enqueue", "check", "status", "sweep", "failed", "pause", "resume", "config",
    ] {
        assert!(help.contains(&format!("\n  {command} ")), "{command} is missing in:\n{help}");
    }
    assert!(bench.run(&["enqueue", "--help"]).good().contains("Examples:"));
    assert!(bench.run(&["--version"]).good().starts_with("outbox "));
}

#[test]
fn migrations_are_applied_once_and_shown() {
    let bench = Bench::new();
    assert!(bench.run(&["migrate", "up"]).good().starts_with("applied 1"));
    assert_eq!(bench.run(&["migrate", "up"]).good(), "nothing to do\n");
    assert_eq!(bench.json(&["migrate", "status"])["state"], "current");
    assert!(bench.run(&["migrate", "status"]).good().contains("current"));
    let sql = bench.run(&["migrate", "sql"]).good();
    assert!(sql.contains("outbox_tasks") && sql.contains("CREATE TABLE"), "{sql}");
}

#[test]
fn migrations_for_postgres_are_printed_without_a_server() {
    let bench = Bench::new();
    let url = "store.url=postgres://nobody@127.0.0.1:1/none";
    let sql = bench.run(&["migrate", "sql", "--set", url, "--set", "store.postgres.schema=app"]).good();
    assert!(sql.contains("\"app\".outbox_tasks") || sql.contains("app.outbox_tasks"), "{sql}");
}

#[test]
fn an_event_travels_as_it_was_enqueued() {
    let bench = Bench::migrated();
    bench.write("event.json", "{ \"total\":  42 }");
    let key = ["enqueue", "--aggregate-type", "Order", "--aggregate-id"];
    let id = bench
        .run(&[&key[..], &["101", "--payload", "@event.json", "--header", "tenant=acme=1"]].concat())
        .good();
    bench.run_with_input(&[&key[..], &["102", "--payload", "-"]].concat(), b"[1]").good();
    bench
        .run(&[&key[..], &["103", "--destination", "elsewhere", "--event-type", "OrderGone"]].concat())
        .good();
    bench.run(&[&key[..], &["104", "--payload", "raw", "--content-type", "text/csv"]].concat()).good();
    bench.run(&[&key[..], &["105", "--delay", "1h"]].concat()).good();
    bench.run(&["run", "--once"]).good();

    let delivered = bench.delivered();
    assert_eq!(delivered.len(), 4, "the delayed one waits: {delivered:?}");
    assert_eq!(delivered[0]["id"], id.trim());
    assert_eq!(delivered[0]["payload"], json!({ "total": 42 }));
    assert_eq!(delivered[0]["headers"]["tenant"], "acme=1");
    assert_eq!(delivered[1]["payload"], json!([1]));
    assert_eq!(delivered[2]["destination"], "elsewhere");
    assert_eq!(delivered[2]["payload"], json!(null));
    assert_eq!(delivered[3]["payload_base64"], "cmF3");
    assert_eq!(bench.json(&["status"])[0]["pending"], 1);
}

#[test]
fn an_idempotency_key_inserts_once() {
    let bench = Bench::migrated();
    let event = [
        "enqueue",
        "--aggregate-type",
        "Invoice",
        "--aggregate-id",
        "123",
        "--key",
        "invoice:123:send-email",
    ];
    let first = bench.run(&event);
    let second = bench.run(&event);
    assert!(second.stderr.contains("already enqueued"), "{second:?}");
    assert_eq!(first.good(), second.good());
    assert_eq!(bench.json(&["status"])[0]["pending"], 1);
}

#[test]
fn failed_events_are_listed_retried_and_discarded() {
    let bench = with_a_failed_event();
    let listed = bench.json(&["failed", "list"]);
    assert_eq!(listed[0]["id"], FAILED_ID);
    assert!(listed[0]["last_error"].as_str().unwrap().contains("headers"), "{listed}");
    let table = bench.run(&["failed", "list", "--queue", "default"]).good();
    assert!(table.contains(FAILED_ID) && table.contains("Order/1"), "{table}");
    assert_eq!(bench.json(&["failed", "list", "--queue", "other"]), json!([]));

    assert_eq!(bench.run(&["failed", "retry", "--id", FAILED_ID]).good(), "1 put back\n");
    assert_eq!(bench.json(&["failed", "list"]), json!([]));
    bench.run(&["failed", "retry", "--id", FAILED_ID]).says(1, &["1 of 1", "not FAILED"]);

    bench.sql("UPDATE outbox_tasks SET headers = NULL");
    bench.run(&["run", "--once"]).good();
    assert_eq!(bench.delivered().len(), 1);
}

#[test]
fn a_discarded_event_is_gone_from_the_list() {
    let bench = with_a_failed_event();
    assert_eq!(bench.run(&["failed", "discard", "--queue", "default"]).good(), "1 discarded\n");
    assert_eq!(bench.json(&["failed", "list"]), json!([]));
    assert_eq!(bench.run(&["failed", "discard", "--all"]).good(), "0 discarded\n");
    bench.run(&["check"]).good();
}

#[test]
fn a_paused_queue_delivers_nothing_until_it_is_resumed() {
    let bench = Bench::migrated();
    bench.enqueue("1");
    assert_eq!(bench.run(&["pause", "default"]).good(), "default paused\n");
    bench.run(&["run", "--once"]).good();
    assert!(bench.delivered().is_empty());
    assert_eq!(bench.json(&["status"])[0]["paused"], true);
    bench.run(&["resume", "default"]).good();
    bench.run(&["run", "--once"]).good();
    assert_eq!(bench.delivered().len(), 1);
    bench.run(&["pause", "defualt"]).says(1, &["no queue \"defualt\"", "default"]);
}

#[test]
fn check_finds_nothing_where_nothing_is_wrong() {
    let bench = Bench::migrated();
    bench.enqueue("1");
    let table = bench.run(&["check"]).good();
    assert!(table.contains("sink out") && !table.contains("WRONG"), "{table}");
}

#[test]
fn check_finds_what_needs_a_person() {
    let bench = with_a_failed_event();
    bench.run(&["enqueue", "--queue", "orphaned", "--aggregate-type", "Order", "--aggregate-id", "1"]).good();
    bench.run(&["pause", "default"]).good();
    let answer = bench.run(&["check"]);
    assert_eq!(answer.code, 1, "{answer:?}");
    for words in ["1 FAILED event", "not served", "[queues.orphaned]", "outbox resume default"] {
        assert!(answer.stdout.contains(words), "{words:?} is missing in:\n{}", answer.stdout);
    }
    assert!(answer.stderr.is_empty(), "{answer:?}");
    let findings = bench.json(&["check"]);
    assert!(findings.as_array().unwrap().iter().any(|finding| finding["ok"] == false), "{findings}");
}

#[test]
fn check_finds_keys_that_are_held_for_their_destination_but_not_those_in_retry() {
    let bench = Bench::migrated();
    bench.enqueue("1");
    bench.sql(
        "UPDATE outbox_tasks SET available_at = 9000000000000, last_error = 'no topic', retry_count = 1; \
         INSERT INTO outbox_blocked_keys (queue, aggregate_type, aggregate_id, hold_after, follow_from, reason) \
         VALUES ('default', 'Order', '1', 1, 1, 'no topic')",
    );
    bench.run(&["check"]).good();
    bench.sql("UPDATE outbox_tasks SET retry_count = 0");
    let answer = bench.run(&["check"]);
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.stdout.contains("1 keys are held because of their destination: no topic"), "{answer:?}");
}

#[test]
fn check_says_what_is_wrong_with_database_and_sink() {
    let bench = Bench::new();
    bench.write(
        "outbox.toml",
        "queues.default.sink = \"out\"\n[sinks.out]\ntype = \"file\"\npath = \"/no/such/directory/events\"\n",
    );
    let answer = bench.run(&["check"]);
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.stdout.contains("outbox migrate up"), "{answer:?}");
    assert!(answer.stdout.contains("/no/such/directory"), "{answer:?}");
}

#[test]
fn a_sweep_says_what_it_did() {
    let bench = Bench::migrated();
    let id = bench.enqueue("1");
    bench.sql(
        "INSERT INTO outbox_claims (token, queue, relay, claimed_at, lease_until, task_count, seq_from, seq_to) \
         VALUES (7, 'default', 'gone', 0, 1, 1, 1, 1); \
         UPDATE outbox_tasks SET status = 'PROCESSING', claim_token = 7",
    );
    let check = bench.run(&["check"]);
    assert_eq!(check.code, 1, "{check:?}");
    assert!(check.stdout.contains("1 claims have outlived their lease"), "{check:?}");
    let swept = bench.json(&["sweep"]);
    assert_eq!((&swept["expired_claims"], &swept["recovered"]), (&json!(1), &json!(1)), "{swept}");
    bench.run(&["run", "--once"]).good();
    assert_eq!(bench.delivered()[0]["id"], id);
    assert!(bench.run(&["sweep"]).good().contains("expired claims"));
}

#[test]
fn the_configuration_is_shown_without_secrets() {
    let bench = Bench::new();
    bench.write("outbox.toml", "[store.postgres]\nschema = \"app\"\n[relay]\nname = \"blue\"\n");
    let environment = [("OUTBOX_STORE__URL", "postgres://u:hunter2@h/db?password=hunter2")];
    for format in ["table", "json"] {
        let shown = bench.run_with(&["config", "show", "--format", format], &environment).good();
        for words in
            ["store.postgres.schema", "app", "outbox.toml", "OUTBOX_STORE__URL", "u:***@h", "default"]
        {
            assert!(shown.contains(words), "{words:?} is missing in:\n{shown}");
        }
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}

#[test]
fn nobody_reading_is_no_error() {
    let bench = Bench::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = bench.command(&["config", "show"]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
