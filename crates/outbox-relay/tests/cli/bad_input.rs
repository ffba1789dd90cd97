//! Every mistake is one line that says what to do, and an exit code that says whose it is.

use std::net::TcpListener;

use crate::bench::Bench;

const CONFIG: i32 = 78;
const USAGE: i32 = 2;
const RUNTIME: i32 = 1;

fn configured(text: &str) -> Bench {
    let bench = Bench::new();
    bench.write("outbox.toml", text);
    bench
}

#[test]
fn an_unknown_key_is_suggested() {
    let bench =
        configured("[queues.default]\nsink = \"out\"\nleese = \"60s\"\n[sinks.out]\ntype = \"null\"\n");
    bench.run(&["run"]).says(CONFIG, &["queues.default.leese", "outbox.toml", "did you mean \"lease\"?"]);
}

#[test]
fn a_wrong_type_says_what_is_allowed() {
    let bench =
        configured("[queues.default]\nsink = \"out\"\nbatch = \"many\"\n[sinks.out]\ntype = \"null\"\n");
    bench.run(&["run"]).says(CONFIG, &["queues.default.batch", "outbox.toml", "a whole number"]);
}

#[test]
fn a_lease_that_is_too_short_says_why() {
    let bench = configured(
        "[queues.default]\nsink = \"out\"\nlease = \"20s\"\npublish_timeout = \"20s\"\n[sinks.out]\ntype = \"null\"\n",
    );
    bench
        .run(&["run"])
        .says(CONFIG, &["queues.default.lease", "publish_timeout", "settle margin", "raise lease"]);
}

#[test]
fn a_sink_that_is_not_defined_is_suggested() {
    let bench = configured("queues.default.sink = \"order\"\nsinks.orders.type = \"null\"\n");
    bench.run(&["check"]).says(CONFIG, &["queues.default.sink", "did you mean \"orders\"?"]);
}

#[test]
fn a_template_with_an_unknown_field_names_the_known_ones() {
    let bench = configured(
        "[queues.default]\nsink = \"out\"\ndestination = \"{{ topic }}\"\n[sinks.out]\ntype = \"null\"\n",
    );
    bench.run(&["run"]).says(CONFIG, &["queues.default.destination", "topic", "aggregate_type"]);
}

#[test]
fn a_relay_without_a_queue_shows_how_to_begin() {
    let bench = Bench::new();
    bench.run(&["migrate", "up"]).good();
    let answer = bench.run(&["run"]);
    answer.says(CONFIG, &["no queue", "queues.default.sink = \"out\"", "sinks.out.type = \"stdout\""]);
    bench.write("outbox.toml", "queues.default.sink = \"out\"\nsinks.out.type = \"stdout\"\n");
    bench.run(&["run", "--once"]).good();
}

#[test]
fn a_database_that_is_not_there_or_not_migrated_says_what_to_run() {
    let bench =
        configured("queues.default.sink = \"out\"\nsinks.out.type = \"null\"\nhttp.listen = \"off\"\n");
    for command in [&["run"][..], &["status"], &["sweep"], &["failed", "list"], &["pause", "default"]] {
        bench.run(command).says(RUNTIME, &["outbox.db", "outbox migrate up"]);
    }
    assert!(!bench.path("outbox.db").exists(), "only migrate up makes the file");

    bench.sql("CREATE TABLE business (id INTEGER)");
    let event = ["enqueue", "--aggregate-type", "Order", "--aggregate-id", "1"];
    for command in [&["run"][..], &["run", "--once"], &["status"], &["sweep"], &["failed", "list"], &event] {
        bench.run(command).says(RUNTIME, &["outbox migrate up"]);
    }
}

#[test]
fn a_newer_database_is_left_alone() {
    let bench = Bench::migrated();
    bench.sql("INSERT INTO _outbox_migrations (version, name, breaking) VALUES (9000, 'later', 1)");
    for command in [&["run"][..], &["status"], &["migrate", "up"]] {
        bench.run(command).says(RUNTIME, &["9000", "newer outbox"]);
    }
}

#[test]
fn a_file_that_is_no_database_is_named() {
    let bench = Bench::new();
    bench.write("outbox.toml", "queues.default.sink = \"out\"\nsinks.out.type = \"null\"\n");
    bench.write("outbox.db", &"this is not a database ".repeat(100));
    for command in [&["run"][..], &["status"], &["migrate", "up"]] {
        bench.run(command).says(RUNTIME, &["outbox.db", "not a SQLite database", "store.url"]);
    }
    std::fs::create_dir(bench.path("directory")).unwrap();
    bench
        .run(&["status", "--set", "store.url=sqlite://directory"])
        .says(RUNTIME, &["directory", "store.url"]);
}

#[test]
fn a_network_that_refuses_ends_all_commands_but_run() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("postgres://app:hunter2@127.0.0.1:{port}/db");
    let bench = Bench::new();
    let event = ["enqueue", "--aggregate-type", "Order", "--aggregate-id", "1"];
    for command in [&["status"][..], &["migrate", "up"], &["failed", "list"], &event] {
        let answer = bench.run_with(command, &[("OUTBOX_STORE__URL", &url)]);
        answer.says(RUNTIME, &["refused", "127.0.0.1"]);
        assert!(!answer.stderr.contains("hunter2"), "{answer:?}");
    }
}

#[test]
fn a_url_that_cannot_be_read_is_not_said_back() {
    let bench = Bench::new();
    let answer = bench.run_with(&["status"], &[("OUTBOX_STORE__URL", "postgres://app:hunter2@host:port/db")]);
    answer.says(CONFIG, &["OUTBOX_STORE__URL", "postgres://"]);
    assert!(!answer.stderr.contains("hunter2"), "{answer:?}");
}

#[test]
fn an_address_in_use_is_named() {
    let bench = Bench::migrated();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let listen = format!("http.listen={address}");
    bench.run(&["run", "--set", &listen]).says(RUNTIME, &["http.listen", &address, "\"off\""]);
}

#[test]
fn a_configuration_file_that_was_asked_for_must_be_there() {
    Bench::new().run(&["--config", "missing.toml", "status"]).says(CONFIG, &["missing.toml", "--config"]);
}

#[test]
fn several_problems_are_a_line_each() {
    let bench = configured("[queues.a]\nsink = \"x\"\nbatch = 0\n");
    let answer = bench.run(&["run"]);
    assert_eq!(answer.code, CONFIG);
    assert_eq!(answer.stderr.lines().count(), 2, "{answer:?}");
    assert!(answer.stderr.lines().all(|line| line.starts_with("error: queues.a.")), "{answer:?}");
}

#[test]
fn unknown_variables_warn_and_do_no_harm() {
    let bench = Bench::migrated();
    let answer = bench.run_with(&["status"], &[("OUTBOX_PORT_9464_TCP", "tcp://10.0.0.1:9464")]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(answer.stderr.contains("warning: OUTBOX_PORT_9464_TCP"), "{answer:?}");
}

#[test]
fn wrong_usage_is_not_wrong_configuration() {
    let bench = Bench::migrated();
    let id = "0198f0c2-7e1a-7c3e-9d4e-2f1b6a5c8d90";
    for command in [
        &["unknown"][..],
        &[],
        &["failed", "retry"],
        &["failed", "discard"],
        &["failed", "retry", "--all", "--queue", "default"],
        &["failed", "retry", "--id", id, "--all"],
        &["failed", "retry", "--id", "no-uuid"],
        &["enqueue", "--aggregate-type", "Order"],
        &["status", "--format", "xml"],
    ] {
        assert_eq!(bench.run(command).code, USAGE, "{command:?}");
    }
}

#[test]
fn an_event_that_cannot_be_inserted_names_its_field() {
    let bench = Bench::migrated();
    let with = |more: &[&'static str]| {
        let event = ["enqueue", "--aggregate-type", "Order", "--aggregate-id", "1"];
        bench.run(&[&event, more].concat())
    };
    with(&["--payload", "{not json"]).says(RUNTIME, &["payload", "not valid JSON"]);
    with(&["--payload", "@missing.json"]).says(RUNTIME, &["missing.json"]);
    with(&["--header", "outbox-id=1"]).says(RUNTIME, &["header"]);
}
