//! Commands that go on until they are told to stop.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::bench::{Bench, PATIENCE, Running};

#[test]
fn a_relay_delivers_answers_probes_and_stops_on_a_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let bench = Bench::migrated();
        bench.enqueue("1");
        let relay = bench.start(&["run", "--set", "http.listen=127.0.0.1:0", "--log", "json"]);
        let listening: serde_json::Value = serde_json::from_str(&relay.logs("listening")).unwrap();
        let address = listening["address"].as_str().unwrap().to_owned();
        eventually(|| bench.delivered().len() == 1);
        eventually(|| get(&address, "/readyz").starts_with("HTTP/1.1 200"));
        let ready = get(&address, "/readyz");
        assert!(ready.contains("\"out\"") && ready.contains("\"store\""), "{ready}");
        assert!(get(&address, "/livez").starts_with("HTTP/1.1 200"));
        eventually(|| {
            get(&address, "/metrics").contains("outbox_published_total{queue=\"default\",sink=\"out\"} 1")
        });
        relay.signal(signal);
        let (code, logged) = relay.ends();
        assert_eq!(code, 0, "{logged:?}");
        let status = bench.json(&["status"]);
        assert_eq!(
            (status[0]["pending"].as_u64(), status[0]["processing"].as_u64()),
            (Some(0), Some(0)),
            "{status}"
        );
    }
}

#[test]
fn a_sink_that_is_down_does_not_stop_the_start_and_shows_in_readyz() {
    let bench = Bench::migrated();
    let relay = bench.start(&[
        "run",
        "--log",
        "json",
        "--set",
        "http.listen=127.0.0.1:0",
        "--set",
        "sinks.out.path=not/there/events.jsonl",
    ]);
    let listening: serde_json::Value = serde_json::from_str(&relay.logs("listening")).unwrap();
    let address = listening["address"].as_str().unwrap().to_owned();
    eventually(|| get(&address, "/readyz").contains("not/there"));
    assert!(get(&address, "/readyz").starts_with("HTTP/1.1 503"));
    std::fs::create_dir_all(bench.path("not/there")).unwrap();
    bench.enqueue("1");
    eventually(|| bench.path("not/there/events.jsonl").metadata().is_ok_and(|file| file.len() > 0));
    relay.signal(Signal::TERM);
    assert_eq!(relay.ends().0, 0);
}

#[test]
fn a_drain_tells_when_a_sink_holds_due_events_back() {
    let bench = Bench::migrated();
    bench.enqueue("1");
    let answer = bench.run(&["run", "--once", "--set", "sinks.out.path=not/there/events.jsonl"]);
    assert_eq!(answer.code, 1, "{answer:?}");
    let last = answer.stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: ") && last.contains("default (sink out)"), "{answer:?}");
    bench.run(&["run", "--once"]).good();
    assert_eq!(bench.delivered().len(), 1);
}

#[test]
fn a_relay_waits_for_a_database_that_refuses_and_stops_when_told() {
    let bench = Bench::migrated();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("store.url=postgres://app:hunter2@127.0.0.1:{port}/db");
    let relay = bench.start(&["run", "--set", &url]);
    let said = relay.logs("waiting for it");
    assert!(said.contains("refused") && !said.contains("hunter2"), "{said}");
    relay.signal(Signal::TERM);
    let (code, logged) = relay.ends();
    assert_eq!(code, 0, "{logged:?}");
    assert!(!logged.iter().any(|line| line.contains("waiting for it")), "said once: {logged:?}");
}

#[test]
fn a_second_signal_stops_at_once() {
    let bench = Bench::migrated();
    bench.enqueue("1");
    // Somebody else has the file: the relay waits for it with the event in hand.
    let file = std::fs::File::create(bench.path("events.jsonl")).unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let relay = bench.start(&["run", "--set", "relay.shutdown_grace=1h"]);
    eventually(|| bench.json(&["status"])[0]["processing"] == 1);
    relay.signal(Signal::TERM);
    relay.logs("a second signal stops at once");
    relay.signal(Signal::TERM);
    assert_eq!(relay.ends().0, 1);
}

#[test]
fn dev_shows_deliveries_its_own_and_those_of_a_second_terminal() {
    let bench = Bench::new();
    let dev = bench.start(&["dev"]);
    let export = dev.prints("export OUTBOX_STORE__URL=");
    let command = dev.prints("enqueue");
    let own = dev.prints("delivered");
    assert!(own.contains("OrderCreated") && own.contains(" ms"), "{own}");
    second_terminal(&bench, &format!("{export}\n{command}"));
    let by_hand = dev.prints("OrderPaid");
    assert!(by_hand.contains("delivered") && by_hand.contains("{\"by\": \"hand\"}"), "{by_hand}");
    let status =
        second_terminal(&bench, &format!("{export}\n{} status --format json", env!("CARGO_BIN_EXE_outbox")));
    assert!(status.contains("\"queue\":\"default\""), "{status}");

    let file = export.split("sqlite://").nth(1).unwrap().to_owned();
    assert!(std::path::Path::new(&file).exists(), "{file}");
    stops(dev);
    assert!(!std::path::Path::new(&file).exists(), "the temporary file is removed");
    assert!(!std::path::Path::new(&file).parent().unwrap().exists());
}

#[test]
fn dev_stops_after_a_count_and_keeps_a_file_that_was_given() {
    let bench = Bench::new();
    let out = bench.run(&["dev", "--count", "2", "--file", "demo.db"]).good();
    assert_eq!(out.lines().filter(|line| line.starts_with("delivered")).count(), 2, "{out}");
    let url = [("OUTBOX_STORE__URL", "sqlite://demo.db")];
    let status = bench.run_with(&["status", "--format", "json"], &url).good();
    assert!(status.contains("\"processing\":0"), "{status}");
}

fn second_terminal(bench: &Bench, script: &str) -> String {
    let output = Command::new("sh")
        .args(["-ec", script])
        .current_dir(bench.directory.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn stops(running: Running) {
    running.signal(Signal::INT);
    let (code, logged) = running.ends();
    assert_eq!(code, 0, "{logged:?}");
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Asks until it is so.
#[track_caller]
fn eventually(mut condition: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "it never was so");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
