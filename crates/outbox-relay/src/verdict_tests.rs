//! What every answer costs.

use bytes::Bytes;
use outbox_store::Payload;
use uuid::Uuid;

use super::*;

fn event(key: &str) -> Event {
    Event { id: Uuid::now_v7(), payload: Payload::Json(Bytes::from_static(b"{}")), ..Event::bare(1, key) }
}

fn acked() -> Outcome {
    Outcome::Answered(Answer::Acked { receipt: Some("here".into()) })
}

fn refused(cause: Cause) -> Outcome {
    Outcome::Answered(Answer::refused(cause, "why"))
}

fn silent() -> Outcome {
    Outcome::Answered(Answer::silence(Cause::Sink))
}

fn unsent() -> Outcome {
    Outcome::Answered(Answer::Unsent)
}

struct Case {
    policy: QueuePolicy,
    retry: Backoff,
    probe: bool,
}

impl Case {
    fn new() -> Self {
        Self { policy: QueuePolicy::named("default"), retry: Backoff::default(), probe: false }
    }

    fn decide(&self, rows: &[(Event, Outcome)]) -> Decision {
        let events: Vec<_> = rows.iter().map(|(event, _)| event.clone()).collect();
        let outcomes: Vec<_> = rows.iter().map(|(_, outcome)| outcome.clone()).collect();
        let circumstances = Circumstances { policy: &self.policy, retry: &self.retry, probe: self.probe };
        // In the middle of the spread: no jitter.
        decide(&events, &outcomes, &circumstances, || 0.5)
    }
}

/// One letter a verdict, so that a table can be read.
fn letters(decision: &Decision) -> String {
    let letter = |verdict: &Verdict| match verdict {
        Verdict::Published { .. } => 'P',
        Verdict::Retry { .. } => 'R',
        Verdict::Hold { .. } => 'H',
        Verdict::Failed { .. } => 'F',
        Verdict::Release => '-',
    };
    decision.verdicts.iter().map(letter).collect()
}

fn health(decision: &Decision) -> &'static str {
    match decision.sink {
        SinkHealth::Up => "up",
        SinkHealth::Down { .. } => "down",
        SinkHealth::Unknown => "unknown",
    }
}

#[test]
fn each_cause_has_its_price() {
    let table = [
        (acked(), "P", "up"),
        (refused(Cause::Message), "F", "up"),
        (refused(Cause::Unclear), "R", "up"),
        (refused(Cause::Destination), "H", "up"),
        (refused(Cause::Sink), "-", "down"),
        (silent(), "-", "down"),
        (unsent(), "-", "unknown"),
        (Outcome::NotSent, "-", "unknown"),
        (Outcome::Invalid("bad headers".into()), "F", "unknown"),
    ];
    for (outcome, verdict, sink) in table {
        let decision = Case::new().decide(&[(event("a"), outcome.clone())]);
        assert_eq!((letters(&decision).as_str(), health(&decision)), (verdict, sink), "{outcome:?}");
    }
}

#[test]
fn after_a_row_that_was_not_accepted_the_rest_of_its_key_waits() {
    let table = [
        // key, outcome … → verdicts with order, verdicts without
        (vec![("a", refused(Cause::Unclear)), ("a", unsent()), ("b", acked())], "R-P", "R-P"),
        (vec![("a", refused(Cause::Unclear)), ("a", refused(Cause::Unclear))], "R-", "RR"),
        (vec![("a", refused(Cause::Unclear)), ("a", acked()), ("a", refused(Cause::Message))], "RP-", "RPF"),
        (vec![("a", acked()), ("a", refused(Cause::Message)), ("a", refused(Cause::Message))], "PF-", "PFF"),
        (
            vec![("a", unsent()), ("a", refused(Cause::Destination)), ("b", refused(Cause::Destination))],
            "--H",
            "-HH",
        ),
        (vec![("a", refused(Cause::Sink)), ("a", refused(Cause::Unclear)), ("b", acked())], "--P", "-RP"),
    ];
    for (rows, ordered, unordered) in table {
        let rows: Vec<_> = rows.into_iter().map(|(key, outcome)| (event(key), outcome)).collect();
        let mut case = Case::new();
        assert_eq!(letters(&case.decide(&rows)), ordered, "{rows:?}");
        case.policy.ordering = Ordering::None;
        assert_eq!(letters(&case.decide(&rows)), unordered, "{rows:?}");
    }
}

#[test]
fn what_cannot_be_sent_holds_its_key_only_where_failed_rows_block() {
    let invalid = || Outcome::Invalid("bad headers".into());
    let rows = [(event("a"), invalid()), (event("a"), acked()), (event("a"), invalid())];
    let mut case = Case::new();
    assert_eq!(letters(&case.decide(&rows)), "FPF");
    case.policy.on_failed = OnFailed::Block;
    let rows = [(event("a"), invalid()), (event("a"), Outcome::NotSent), (event("b"), acked())];
    assert_eq!(letters(&case.decide(&rows)), "F-P");
}

#[test]
fn a_row_is_tried_once_and_retried_max_retries_times() {
    let table = [
        (0, None, "R"),
        (4, None, "R"),
        (5, None, "F"),
        (6, None, "F"),
        (0, Some(0), "F"),
        (5, Some(6), "R"),
    ];
    for (retry_count, max_retries, verdict) in table {
        let row = Event { retry_count, max_retries, ..event("a") };
        let decision = Case::new().decide(&[(row, refused(Cause::Unclear))]);
        assert_eq!(letters(&decision), verdict, "{retry_count} of {max_retries:?}");
    }
}

#[test]
fn the_backoff_grows_to_its_limit_and_never_overflows() {
    let backoff = Backoff::default();
    let seconds = |count| delay(&backoff, count, 0.5, Duration::ZERO).as_secs();
    assert_eq!([0, 1, 2, 3, 4, 5].map(seconds), [10, 60, 360, 2160, 12960, 14400]);
    assert_eq!(seconds(u32::MAX), 14400);
    let strange = [
        Backoff { factor: f64::INFINITY, initial: Duration::ZERO, ..backoff.clone() },
        Backoff { factor: f64::NAN, ..backoff.clone() },
        Backoff { factor: -3.0, jitter: f64::NAN, ..backoff.clone() },
        Backoff { max: Duration::MAX, initial: Duration::MAX, jitter: 9.0, ..backoff.clone() },
    ];
    for backoff in strange {
        for count in [0, 1, 2, 1000, u32::MAX] {
            assert!(delay(&backoff, count, 1.0, Duration::MAX) <= LONGEST_DELAY);
            assert!(delay(&backoff, count, f64::NAN, Duration::ZERO) <= LONGEST_DELAY);
        }
    }
}

#[test]
fn jitter_spreads_both_ways_and_a_wish_of_the_sink_is_a_floor() {
    let backoff = Backoff::default();
    assert_eq!(delay(&backoff, 0, 0.0, Duration::ZERO), Duration::from_secs(8));
    assert_eq!(delay(&backoff, 0, 1.0, Duration::ZERO), Duration::from_secs(12));
    assert_eq!(delay(&backoff, 0, 1.0, Duration::from_secs(90)), Duration::from_secs(90));
}

#[test]
fn a_hold_waits_for_the_first_delay_however_often_the_row_was_retried() {
    let row = Event { retry_count: 4, ..event("a") };
    let decision = Case::new().decide(&[(row, refused(Cause::Destination))]);
    assert_eq!(decision.verdicts, [Verdict::Hold { after: Duration::from_secs(10), error: "why".into() }]);
}

#[test]
fn a_full_probe_of_one_silent_key_makes_room_for_others() {
    let mut case = Case::new();
    case.policy.batch = 2;
    let alone = [(event("a"), silent()), (event("a"), unsent())];
    assert_eq!(letters(&case.decide(&alone)), "--", "not a probe");
    case.probe = true;
    assert_eq!(letters(&case.decide(&alone)), "H-");
    assert_eq!(health(&case.decide(&alone)), "down");
    assert_eq!(
        letters(&case.decide(&[(event("a"), silent()), (event("b"), silent())])),
        "--",
        "several keys"
    );
    assert_eq!(
        letters(&case.decide(&[(event("a"), refused(Cause::Sink)), (event("a"), unsent())])),
        "--",
        "not silent"
    );
    assert_eq!(letters(&case.decide(&alone[..1])), "-", "nobody else was there");
    let lost = Event { lost_count: 1, ..event("a") };
    assert_eq!(letters(&case.decide(&[(lost, silent())])), "H", "a lost row fills the claim by its weight");
}

#[test]
fn one_message_that_blames_the_sink_is_enough() {
    let wish = |seconds| {
        Outcome::Answered(Answer::Refused(Refusal {
            cause: Cause::Sink,
            error: format!("429 {seconds}"),
            retry_after: Some(Duration::from_secs(seconds)),
            silent: false,
        }))
    };
    let rows = [(event("a"), acked()), (event("b"), wish(3)), (event("c"), wish(7)), (event("d"), acked())];
    let decision = Case::new().decide(&rows);
    let expected = SinkHealth::Down { error: "429 3".into(), retry_after: Some(Duration::from_secs(7)) };
    assert_eq!(decision.sink, expected);
    assert_eq!(letters(&decision), "P--P");
}

#[test]
fn texts_are_fit_for_a_database() {
    assert_eq!(clean("a\0b"), "a b");
    assert_eq!(clean(&"é".repeat(TEXT_BYTES)).len(), TEXT_BYTES);
    assert!(clean(&format!("x{}", "é".repeat(TEXT_BYTES))).len() < TEXT_BYTES);
}
