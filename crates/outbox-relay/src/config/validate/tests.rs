use std::io::Write;

use super::*;
use crate::config::load;

/// Loads a file of this text, with these variables and `--set`s.
fn loaded(text: &str, environment: &[(&str, &str)], sets: &[&str]) -> Result<Loaded, ConfigError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    let environment = environment.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    load(Some(file.path()), environment, &sets)
}

fn settings(text: &str) -> Result<Settings, ConfigError> {
    loaded(text, &[], &[])?.validate()
}

/// The only problem of a configuration.
fn problem(text: &str) -> String {
    let problems = settings(text).expect_err("a problem").problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(!problems[0].contains('\n'), "{problems:?}");
    problems[0].clone()
}

#[track_caller]
fn assert_says(problem: &str, words: &[&str]) {
    for word in words {
        assert!(problem.contains(word), "{word:?} is missing in: {problem}");
    }
}

const SINK: &str = "[sinks.out]\ntype = \"null\"\n";

#[test]
fn every_documented_key_is_accepted() {
    let text = r#"
        [store]
        url = "sqlite://outbox.db"
        [queues.default]
        sink = "orders"
        destination = "{{ aggregate_type }}.events"
        ordering = "none"
        batch = 100
        lease = "90s"
        publish_timeout = "30s"
        published = "delete"
        keep_for = "12h"
        failed_keep_for = "30d"
        on_failed = "block"
        max_retries = 7
        retry = { initial = "1s", factor = 2.0, max = "1h", jitter = 0.5 }
        batch_bytes = "1MiB"
        [store.sqlite]
        synchronous = "full"
        busy_timeout = "2s"
        checkpoint = "off"
        [sinks.orders]
        type = "file"
        path = "events.jsonl"
        envelope = "cloudevents-binary"
        [sweeper]
        interval = "3s"
        [http]
        listen = "off"
        [relay]
        name = "blue"
        shutdown_grace = "20s"
    "#;
    let settings = settings(text).unwrap();
    let queue = &settings.queues[0];
    assert_eq!(queue.policy.batch, 100);
    assert_eq!(queue.policy.batch_bytes, 1 << 20);
    assert_eq!(queue.policy.lease, Duration::from_secs(90));
    assert_eq!(queue.policy.failed_keep_for, Some(Duration::from_secs(30 * 86_400)));
    assert_eq!(queue.policy.max_retries, 7);
    assert_eq!(queue.retry.initial, Duration::from_secs(1));
    assert_eq!(settings.sinks["orders"].envelope, Envelope::CloudeventsBinary);
    assert_eq!(settings.listen, None);
    assert_eq!(settings.relay, "blue");
    assert_eq!(settings.shutdown_grace, Duration::from_secs(20));
    let Engine::Sqlite(sqlite) = &settings.store.engine else { panic!("{settings:?}") };
    assert_eq!(sqlite.checkpoint, None);
}

#[test]
fn the_documented_values_are_the_defaults() {
    let written = r#"
        [queues.default]
        sink = "out"
        ordering = "key"
        batch = 500
        lease = "60s"
        publish_timeout = "20s"
        published = "keep"
        keep_for = "24h"
        failed_keep_for = "off"
        on_failed = "skip"
        max_retries = 5
        retry = { initial = "10s", factor = 6.0, max = "4h", jitter = 0.2 }
        batch_bytes = "16MiB"
        [store]
        url = "sqlite://outbox.db"
        [store.sqlite]
        synchronous = "normal"
        busy_timeout = "5s"
        checkpoint = "60s"
        [sweeper]
        interval = "5s"
        [http]
        listen = "127.0.0.1:9464"
        [relay]
        shutdown_grace = "10s"
    "#;
    let written = settings(&format!("{written}{SINK}")).unwrap();
    let default = settings(&format!("queues.default.sink = \"out\"\n{SINK}")).unwrap();
    assert_eq!(format!("{written:?}"), format!("{default:?}"));
    assert!(default.relay.ends_with(&format!("-{}", std::process::id())), "{}", default.relay);
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let file = "[sweeper]\ninterval = \"1s\"\n[relay]\nname = \"file\"\nshutdown_grace = \"1s\"\n";
    let environment = [("OUTBOX_RELAY__NAME", "007"), ("OUTBOX_RELAY__SHUTDOWN_GRACE", "2s")];
    let mut loaded = loaded(file, &environment, &["relay.shutdown_grace=3s"]).unwrap();
    let settings = loaded.validate().unwrap();
    assert_eq!(settings.sweep_interval, Duration::from_secs(1));
    assert_eq!(settings.relay, "007", "text from the environment stays text");
    assert_eq!(settings.shutdown_grace, Duration::from_secs(3));
    let from = |key: &str| loaded.entries().into_iter().find(|entry| entry.key == key).unwrap().from;
    assert_eq!(from("relay.shutdown_grace"), "--set");
    assert_eq!(from("relay.name"), "OUTBOX_RELAY__NAME");
    assert_eq!(from("http.listen"), "default");
}

#[test]
fn unknown_keys_are_named_with_the_file_and_a_suggestion() {
    let text = "[queues.default]\nsink = \"out\"\nleese = \"60s\"\n[stores]\nurl = \"x\"\n";
    let problems = settings(&format!("{text}{SINK}")).unwrap_err().problems;
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert_says(&problems[0], &["queues.default.leese", "did you mean \"lease\"?", "/"]);
    assert_says(&problems[1], &["\"stores\"", "did you mean \"store\"?"]);
}

#[test]
fn wrong_types_say_what_is_allowed() {
    for (text, words) in [
        ("[queues.default]\nbatch = \"many\"", ["queues.default.batch", "a whole number"]),
        ("[queues.default]\nbatch = -1", ["queues.default.batch", "not negative"]),
        ("[queues.default]\nlease = 60", ["queues.default.lease", "\"20s\""]),
        ("[queues.default]\nlease = \"60x\"", ["queues.default.lease", "\"20s\""]),
        ("[queues.default]\nretry = { factor = \"x\" }", ["queues.default.retry.factor", "a number"]),
        ("[queues.default]\nbatch_bytes = \"16XB\"", ["queues.default.batch_bytes", "\"16MiB\""]),
        ("[queues.default]\non_failed = \"stop\"", ["queues.default.on_failed", "\"skip\", \"block\""]),
        ("[queues.default]\nordering = \"keys\"", ["queues.default.ordering", "did you mean \"key\"?"]),
        ("queues = 3", ["queues", "a table"]),
        ("store = { url = 12345 }", ["store.url", "text in quotes"]),
    ] {
        let problem = problem(text);
        assert_says(&problem, &words);
    }
    assert!(!problem("store = { url = 12345 }").contains("12345"), "it may be a password");
}

#[test]
fn a_syntax_error_names_the_line_and_shows_no_text() {
    let problem = problem("[store]\nurl = \"postgres://u:hunter2@h/db\n");
    assert_says(&problem, &["line 2", "not valid TOML"]);
    assert!(!problem.contains("hunter2"), "{problem}");
}

#[test]
fn a_lease_must_outlast_publish_timeout_and_margin() {
    let queue = |lease: &str| format!("[queues.q]\nsink = \"out\"\nlease = \"{lease}\"\n{SINK}");
    // A tenth of 22 s is the margin: 20 s + 2.2 s > 22 s.
    assert_says(&problem(&queue("22s")), &["queues.q.lease", "too short", "\"20s\"", "raise lease"]);
    assert!(settings(&queue("23s")).is_ok());
    // Equal is not enough: 95 s and a margin of 5 s, which is the most there is.
    let even = queue("100s").replace("lease", "publish_timeout = \"95s\"\nlease");
    assert_says(&problem(&even), &["queues.q.lease", "\"5s\""]);
    assert!(settings(&even.replace("100s", "101s")).is_ok());
}

#[test]
fn a_sink_must_be_defined() {
    let undefined = problem(&format!("queues.q.sink = \"oud\"\n{SINK}"));
    assert_says(&undefined, &["queues.q.sink", "\"oud\"", "did you mean \"out\"?"]);
    assert_says(&problem("queues.q.sink = \"out\""), &["add a table [sinks.out]"]);
    assert_says(&problem(&format!("[queues.q]\nbatch = 1\n{SINK}")), &["queues.q has no sink", "\"out\""]);
}

#[test]
fn a_sinks_table_is_read_by_its_type() {
    assert_says(&problem("sinks.x.path = \"p\""), &["sinks.x has no type", "\"file\""]);
    assert_says(&problem("sinks.x.type = \"fil\""), &["sinks.x.type", "did you mean \"file\"?"]);
    assert_says(&problem("[sinks.x]\ntype = \"file\""), &["sinks.x", "no path"]);
    let unknown = problem("[sinks.x]\ntype = \"file\"\npath = \"p\"\npaht = \"q\"");
    assert_says(&unknown, &["sinks.x.paht", "did you mean \"path\"?"]);
    assert_says(&problem("[sinks.x]\ntype = \"null\"\nenvelope = \"rwa\""), &["sinks.x.envelope", "\"raw\""]);
    assert_says(&problem("[sinks.x]\ntype = \"file\"\npath = 3"), &["sinks.x", "a number", "path string"]);
}

#[test]
fn an_unknown_variable_for_a_sink_only_warns() {
    let variables = [("OUTBOX_SINKS__OUT__COLOUR", "12345"), ("OUTBOX_SINKS__OUT__PATH", "42")];
    let mut loaded = loaded("sinks.out.type = \"file\"", &variables, &[]).unwrap();
    let settings = loaded.validate().unwrap();
    assert_eq!(settings.sinks["out"].config.kind(), "file");
    assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);
    assert_says(&loaded.warnings[0], &["OUTBOX_SINKS__OUT__COLOUR", "ignored"]);
    assert!(!loaded.warnings[0].contains("12345"));
}

#[test]
fn numbers_have_their_bounds() {
    for (line, words) in [
        ("batch = 0", ["queues.q.batch", "1 to"]),
        ("batch_bytes = 0", ["queues.q.batch_bytes", "at least 1"]),
        ("publish_timeout = \"0s\"", ["queues.q.publish_timeout", "longer"]),
        ("retry = { factor = 0.5 }", ["queues.q.retry.factor", "1 or more"]),
        ("retry = { factor = nan }", ["queues.q.retry.factor", "1 or more"]),
        ("retry = { jitter = 1.5 }", ["queues.q.retry.jitter", "0 to 1"]),
        ("retry = { initial = \"5h\" }", ["queues.q.retry.max", "retry.initial"]),
    ] {
        assert_says(&problem(&format!("[queues.q]\nsink = \"out\"\n{line}\n{SINK}")), &words);
    }
    assert_says(&problem("sweeper.interval = \"0s\""), &["sweeper.interval"]);
}

#[test]
fn a_template_may_only_name_fields_of_the_event() {
    let text = format!("[queues.q]\nsink = \"out\"\ndestination = \"{{{{ agregate_type }}}}\"\n{SINK}");
    assert_says(&problem(&text), &["queues.q.destination", "agregate_type", "aggregate_type"]);
}

#[test]
fn the_store_is_told_by_its_url() {
    assert_says(&problem("store.url = \"mysql://h/db\""), &["store.url", "sqlite://PATH", "postgres://"]);
    assert_says(&problem("store.url = \"hunter2\""), &["store.url"]);
    assert!(!problem("store.url = \"hunter2\"").contains("hunter2"));
    assert_says(&problem("store.url = \"sqlite://x.db?cache=shared\""), &["store.url", "cache=shared"]);
    assert_says(&problem("store.url = \"postgres://u:hunter2@h:port/db\""), &["store.url", "port"]);
    let mixed = problem("[store]\nurl = \"postgres:///db\"\n[store.sqlite]\nsynchronous = \"full\"");
    assert_says(&mixed, &["[store.sqlite]", "postgres:///db", "remove the table"]);
    assert_says(
        &problem("[store.postgres]\nschema = \"app\""),
        &["[store.postgres]", "sqlite://outbox.db", "default"],
    );
    let settings =
        settings("[store]\nurl = \"postgres:///db?host=/run&user=x\"\npostgres.schema = \"app\"").unwrap();
    assert!(
        matches!(settings.store.engine, Engine::Postgres(PostgresConfig { schema, .. }) if schema == "app")
    );
}

#[test]
fn listen_is_an_address_or_off() {
    for good in ["off", "0.0.0.0:80", "[::1]:9464", "localhost:0"] {
        assert!(settings(&format!("http.listen = \"{good}\"")).is_ok(), "{good}");
    }
    for bad in ["9464", ":9464", "localhost", "h:99999"] {
        assert_says(&problem(&format!("http.listen = \"{bad}\"")), &["http.listen", "\"off\""]);
    }
}

#[test]
fn secrets_come_from_files_and_are_shown_nowhere() {
    let mut secret = tempfile::NamedTempFile::new().unwrap();
    writeln!(secret, "postgres://u:hunter2@h/db").unwrap();
    let path = secret.path().display();
    let mut from_file = loaded(&format!("store.url_file = \"{path}\""), &[], &[]).unwrap();
    assert_eq!(from_file.config.store.url.expose(), "postgres://u:hunter2@h/db");
    let settings = from_file.validate().unwrap();
    let shown = serde_json::to_string(&from_file.entries()).unwrap() + &format!("{:?}", from_file.config);
    assert!(shown.contains("u:***@h"), "{shown}");
    assert!(!shown.contains("hunter2") && !format!("{settings:?}").contains("hunter2"), "{shown}");

    let both = format!("[store]\nurl = \"sqlite://x.db\"\nurl_file = \"{path}\"");
    assert_says(&problem(&both), &["store.url_file", "both set"]);
    assert_says(
        &problem("store.url_file = \"/no/such/file\""),
        &["store.url_file", "/no/such/file", "cannot be read"],
    );
}

#[test]
fn a_variable_takes_the_place_of_the_files_secret_file() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    let text = format!("store.url_file = \"{}\"", secret.path().display());
    let loaded = loaded(&text, &[("OUTBOX_STORE__URL", "sqlite://other.db")], &[]).unwrap();
    assert_eq!(loaded.config.store.url.expose(), "sqlite://other.db");
}

#[test]
fn a_missing_file_that_was_asked_for_is_an_error() {
    let error = load(Some("/no/such/outbox.toml".as_ref()), std::iter::empty(), &[]).unwrap_err();
    assert_says(&error.problems[0], &["/no/such/outbox.toml", "--config"]);
}
