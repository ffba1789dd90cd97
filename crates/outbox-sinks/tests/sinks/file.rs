//! The file sink: whole lines, on disk, whoever else writes and whatever becomes of the file.

use std::fs;
use std::path::Path;

use crate::common::{event, messages, soon};
use bytes::Bytes;
use outbox_sinks::file::AppendFile;
use outbox_sinks::{Answer, Cause, Refusal, Sink};
use outbox_store::{Event, Payload};
use rustix::fs::{FlockOperation, flock};
use tokio::time::{Duration, Instant};

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

async fn publish(sink: &AppendFile, events: &[Event]) -> Vec<Answer> {
    sink.publish(&messages(events), soon()).await
}

fn receipt(answer: &Answer) -> &str {
    match answer {
        Answer::Acked { receipt: Some(receipt) } => receipt,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_line_has_every_field_and_the_payloads_own_text() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events");
    let sink = AppendFile::new(path.clone());
    let events = [
        Event {
            event_type: Some("Created".into()),
            headers: Some("{\"a\":\n\"b\"}".into()),
            ..event(1, "1\"01", "{\"n\": 1.00,\r\n \"s\": \"x\\n\"}")
        },
        Event { payload: Payload::Binary(Bytes::from_static(b"\xff\x00")), ..event(2, "a", "") },
        Event { payload: Payload::Text(Bytes::from_static(b"hi\n")), ..event(3, "a", "") },
        Event { payload: Payload::Tombstone, ..event(4, "a", "") },
    ];
    let answers = publish(&sink, &events).await;
    let expected = [
        r#"{"id":"00000000-0000-0000-0000-000000000001","seq":1,"queue":"default","aggregate_type":"Order","aggregate_id":"1\"01","event_type":"Created","destination":null,"headers":{"a": "b"},"created_at":"1970-01-01T00:00:00Z","payload":{"n": 1.00,   "s": "x\n"}}"#,
        r#"{"id":"00000000-0000-0000-0000-000000000002","seq":2,"queue":"default","aggregate_type":"Order","aggregate_id":"a","event_type":null,"destination":null,"headers":{},"created_at":"1970-01-01T00:00:00Z","payload_base64":"/wA="}"#,
        r#"{"id":"00000000-0000-0000-0000-000000000003","seq":3,"queue":"default","aggregate_type":"Order","aggregate_id":"a","event_type":null,"destination":null,"headers":{},"created_at":"1970-01-01T00:00:00Z","payload_base64":"aGkK"}"#,
        r#"{"id":"00000000-0000-0000-0000-000000000004","seq":4,"queue":"default","aggregate_type":"Order","aggregate_id":"a","event_type":null,"destination":null,"headers":{},"created_at":"1970-01-01T00:00:00Z","payload":null}"#,
    ];
    assert_eq!(lines(&path), expected);
    let second = format!("{}@{}", path.display(), expected[0].len() + 1);
    assert_eq!(receipt(&answers[1]), second);
}

#[tokio::test]
async fn a_torn_last_line_is_ended_first() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events");
    fs::write(&path, "{\"whole\":1}\n{\"torn\":").unwrap();
    let sink = AppendFile::new(path.clone());
    let answers = publish(&sink, &[event(1, "a", "1")]).await;
    let found = lines(&path);
    assert_eq!(found[..2], ["{\"whole\":1}", "{\"torn\":"]);
    assert!(found[2].starts_with("{\"id\"") && found.len() == 3);
    let offset: usize = receipt(&answers[0]).rsplit_once('@').unwrap().1.parse().unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap()[offset..].trim_end(), found[2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_relays_write_whole_lines_to_one_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events");
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4 {
        let sink = AppendFile::new(path.clone());
        writers.spawn(async move {
            for batch in 0..10 {
                let events: Vec<_> =
                    (0..20).map(|n| event(writer * 1000 + batch * 20 + n, "a", "{}")).collect();
                assert!(publish(&sink, &events).await.iter().all(Answer::is_acked));
            }
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    let found = lines(&path);
    assert_eq!(found.len(), 4 * 10 * 20);
    for line in &found {
        serde_json::from_str::<serde_json::Value>(line).unwrap();
    }
}

#[tokio::test]
async fn a_file_that_was_rotated_or_deleted_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events");
    let sink = AppendFile::new(path.clone());
    publish(&sink, &[event(1, "a", "1")]).await;
    fs::rename(&path, directory.path().join("events.1")).unwrap();
    publish(&sink, &[event(2, "a", "1")]).await;
    assert_eq!(lines(&directory.path().join("events.1")).len(), 1);
    assert_eq!(lines(&path).len(), 1);
    fs::remove_file(&path).unwrap();
    let answers = publish(&sink, &[event(3, "a", "1")]).await;
    assert!(receipt(&answers[0]).ends_with("@0"));
    assert!(lines(&path)[0].contains("\"seq\":3"));
}

#[tokio::test]
async fn nothing_is_written_once_the_deadline_has_passed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events");
    let sink = AppendFile::new(path.clone());
    let events = [event(1, "a", "1")];
    assert_eq!(sink.publish(&messages(&events), Instant::now()).await, [Answer::Unsent]);

    let other = fs::OpenOptions::new().append(true).create(true).open(&path).unwrap();
    flock(&other, FlockOperation::LockExclusive).unwrap();
    let deadline = Instant::now() + Duration::from_millis(50);
    assert_eq!(sink.publish(&messages(&events), deadline).await, [Answer::Unsent]);
    flock(&other, FlockOperation::Unlock).unwrap();
    assert!(publish(&sink, &[event(2, "a", "1")]).await[0].is_acked());
    assert_eq!(lines(&path).len(), 1);
}

#[tokio::test]
async fn what_cannot_be_written_is_the_sinks_fault() {
    let directory = tempfile::tempdir().unwrap();
    for path in [directory.path().join("missing/events"), directory.path().to_owned(), "/dev/full".into()] {
        let answers =
            publish(&AppendFile::new(path.clone()), &[event(1, "a", "1"), event(2, "b", "1")]).await;
        assert_eq!(answers.len(), 2);
        for answer in answers {
            let Answer::Refused(Refusal { cause, error, .. }) = answer else { panic!("{answer:?}") };
            assert_eq!(cause, Cause::Sink);
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
        assert!(AppendFile::new(path).check(soon()).await.is_err());
    }
}
