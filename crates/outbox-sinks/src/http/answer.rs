//! Whose fault it is.

use std::error::Error as _;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

use super::address::PrivateAddress;
use crate::options::tls_hint;
use crate::{Answer, Cause, Refusal};

/// What a status that is not 2xx says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blame {
    /// This, whatever became of the others.
    Sure(Cause),
    /// The receiver's while nothing that was sent later is accepted, else the message's.
    SeenByTheOthers,
}

fn blame(status: StatusCode) -> Blame {
    match status.as_u16() {
        400 | 410 | 413 | 415 | 422 | 431 => Blame::Sure(Cause::Message),
        300..=399 | 404 | 405 => Blame::Sure(Cause::Destination),
        408 | 425 | 429 => Blame::Sure(Cause::Sink),
        // One event that a filter in front of the receiver takes offence at must not stand for all.
        401 | 403 | 407 => Blame::SeenByTheOthers,
        400..=499 => Blame::Sure(Cause::Unclear),
        _ => Blame::SeenByTheOthers,
    }
}

/// The answer that a response makes. `now` is used only where the response does not say what time it is.
pub(super) fn to_response(
    status: StatusCode,
    headers: &HeaderMap,
    destination: Option<&str>,
    now: OffsetDateTime,
) -> Answer {
    if status.is_success() {
        return Answer::Acked { receipt: Some(status.as_str().to_owned()) };
    }
    let (cause, silent) = match blame(status) {
        Blame::Sure(cause) => (cause, false),
        // As good as silence: the event may have been taken in, and whose fault it is the others show.
        Blame::SeenByTheOthers => (Cause::Unclear, true),
    };
    let mut error = format!("{}{}", named(status), hint(status));
    if let (Cause::Destination, Some(destination)) = (cause, destination) {
        error = format!("{error}; the destination is {destination:?}");
    }
    Answer::Refused(Refusal { cause, error, retry_after: retry_after(headers, now), silent })
}

/// The answer that no response within `request_timeout` makes.
pub(super) fn no_answer_within(time: Duration) -> Answer {
    let error = format!("no response within the `request_timeout` of {time:?}");
    Answer::Refused(Refusal { cause: Cause::Unclear, error, retry_after: None, silent: true })
}

/// The answer that a request without a response makes. After a connection was made, the event may have arrived.
pub(super) fn without_response(origin: &str, error: &reqwest::Error) -> Answer {
    let silent = !is_before_the_request(error);
    Answer::Refused(Refusal { cause: Cause::Sink, error: describe(origin, error), retry_after: None, silent })
}

fn is_before_the_request(error: &reqwest::Error) -> bool {
    error.is_connect() || private_address(error).is_some()
}

/// One line, without the URL, whose path and query may be secret.
pub(super) fn describe(origin: &str, error: &reqwest::Error) -> String {
    if let Some(private) = private_address(error) {
        return private.to_string();
    }
    let what = if is_before_the_request(error) {
        "cannot connect to"
    } else {
        "no response, and the connection is lost:"
    };
    let causes = causes(error);
    format!("{what} {origin}{causes}{}", tls_hint(&causes))
}

/// What an error was caused by, each cause once, after a colon.
pub(super) fn causes(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        let line = error.to_string();
        if !text.contains(&line) {
            text = format!("{text}: {line}");
        }
        cause = error.source();
    }
    text
}

fn private_address(error: &reqwest::Error) -> Option<&PrivateAddress> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(private) = error.downcast_ref() {
            return Some(private);
        }
        cause = error.source();
    }
    None
}

/// What a response to HEAD says of the receiver.
///
/// # Errors
/// One line when nothing could be delivered to it.
pub(super) fn check(origin: &str, status: StatusCode) -> Result<String, String> {
    let found = format!("{origin} answers HEAD with {}", named(status).trim_start_matches("HTTP "));
    match status.as_u16() {
        // A receiver of POST need not know HEAD, nor take a request without a body for an event.
        200..=299 | 400 | 404 | 405 | 415 | 422 | 501 => Ok(found),
        _ => Err(format!("{found}{}", hint(status))),
    }
}

/// The response's own text is not shown: it may be the event's.
fn named(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("HTTP {} {reason}", status.as_u16()),
        None => format!("HTTP {}", status.as_u16()),
    }
}

fn hint(status: StatusCode) -> &'static str {
    match status.as_u16() {
        300..=399 => ": redirects are not followed; set `url` to where it leads",
        401 | 403 | 407 => ": check the credentials",
        404 | 405 => ": check `url` and the event's destination",
        _ => "",
    }
}

/// `Retry-After`: seconds, or a date, which is compared with the response's own.
fn retry_after(headers: &HeaderMap, now: OffsetDateTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = |text: &str| OffsetDateTime::parse(text, &Rfc2822).ok();
    let now = headers.get(DATE).and_then(|value| value.to_str().ok()).and_then(date).unwrap_or(now);
    Duration::try_from(date(text)? - now).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, headers: &[(&'static str, &'static str)]) -> Refusal {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect::<HeaderMap>();
        match to_response(
            StatusCode::from_u16(status).unwrap(),
            &headers,
            Some("o\"x"),
            OffsetDateTime::UNIX_EPOCH,
        ) {
            Answer::Refused(refusal) => refusal,
            other => panic!("{status}: {other:?}"),
        }
    }

    #[test]
    fn statuses_are_blamed_where_they_belong() {
        for (cause, silent, statuses) in [
            (Cause::Message, false, &[400, 410, 413, 415, 422, 431][..]),
            (Cause::Destination, false, &[300, 301, 302, 304, 307, 308, 404, 405]),
            (Cause::Sink, false, &[408, 425, 429]),
            (Cause::Unclear, false, &[402, 406, 409, 412, 417, 418, 423, 424, 451, 499]),
            (Cause::Unclear, true, &[401, 403, 407, 500, 501, 502, 503, 504, 505, 507, 599]),
        ] {
            for status in statuses {
                let refusal = answered(*status, &[]);
                assert_eq!((refusal.cause, refusal.silent), (cause, silent), "{status}");
                assert!(refusal.error.starts_with(&format!("HTTP {status}")), "{}", refusal.error);
                let names_it = refusal.error.ends_with("the destination is \"o\\\"x\"");
                assert_eq!(names_it, cause == Cause::Destination, "{}", refusal.error);
            }
        }
        for status in [200, 201, 202, 204, 299] {
            let answer = to_response(
                StatusCode::from_u16(status).unwrap(),
                &HeaderMap::new(),
                None,
                OffsetDateTime::UNIX_EPOCH,
            );
            assert_eq!(answer, Answer::Acked { receipt: Some(status.to_string()) });
        }
    }

    #[test]
    fn a_wish_to_be_left_alone_is_seconds_or_a_date() {
        let seconds = |headers: &[_]| answered(429, headers).retry_after.map(|wish| wish.as_secs());
        assert_eq!(seconds(&[]), None);
        assert_eq!(seconds(&[("retry-after", "120")]), Some(120));
        assert_eq!(seconds(&[("retry-after", "soon")]), None);
        let at = ("retry-after", "Thu, 01 Jan 1970 00:01:40 GMT");
        assert_eq!(seconds(&[at]), Some(100));
        assert_eq!(seconds(&[at, ("date", "Thu, 01 Jan 1970 00:01:30 GMT")]), Some(10));
        assert_eq!(seconds(&[at, ("date", "Thu, 01 Jan 1970 00:02:00 GMT")]), None, "it is over");
    }
}
