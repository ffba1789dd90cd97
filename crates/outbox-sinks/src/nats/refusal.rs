//! Whose fault an error answer is.

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::response::Response;
use serde::Deserialize;

use crate::{Answer, Cause};

/// The acknowledgement of a stream.
#[derive(Debug, Deserialize)]
pub(super) struct Ack {
    stream: String,
    seq: u64,
}

/// What the answer to a message means. A repetition is acknowledged with the place of the first.
pub(super) fn answer(subject: &str, payload: &[u8]) -> Answer {
    match serde_json::from_slice::<Response<Ack>>(payload) {
        Ok(Response::Ok(ack)) => Answer::Acked { receipt: Some(format!("{}@{}", ack.stream, ack.seq)) },
        Ok(Response::Err { error }) => {
            let cause = cause(error.code(), error.error_code(), &error.to_string());
            Answer::refused(cause, format!("subject `{subject}`: {error}"))
        }
        Err(_) => Answer::refused(
            Cause::Unclear,
            format!("subject `{subject}`: answered by something that is no stream"),
        ),
    }
}

/// Codes that say it of one message.
const MESSAGE: &[ErrorCode] =
    &[ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM, ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM];

/// Codes that say it of one stream.
const DESTINATION: &[ErrorCode] =
    &[ErrorCode::STREAM_NOT_FOUND, ErrorCode::STREAM_OFFLINE, ErrorCode::STREAM_SEALED];

/// Codes that say it of the servers, or of the account: no room, no leader, not enabled, another copy in process.
const SINK: &[ErrorCode] = &[
    ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
    ErrorCode::CLUSTER_NOT_LEADER,
    ErrorCode::INSUFFICIENT_RESOURCES,
    ErrorCode::JETSTREAM_NOT_ENABLED,
    ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT,
    ErrorCode::MEMORY_RESOURCES_EXCEEDED,
    ErrorCode::NO_ACCOUNT,
    ErrorCode::STORAGE_RESOURCES_EXCEEDED,
    DUPLICATE_IN_PROCESS,
];

/// An earlier copy of the message is being stored; its fate is known soon.
const DUPLICATE_IN_PROCESS: ErrorCode = ErrorCode(10158);

fn cause(status: usize, code: ErrorCode, text: &str) -> Cause {
    match code {
        code if MESSAGE.contains(&code) => Cause::Message,
        code if DESTINATION.contains(&code) => Cause::Destination,
        code if SINK.contains(&code) => Cause::Sink,
        // "maximum messages exceeded", "maximum bytes exceeded": the stream is full and discards what is new.
        ErrorCode::STREAM_STORE_FAILED if text.starts_with("maximum ") => Cause::Destination,
        ErrorCode::STREAM_STORE_FAILED => Cause::Sink,
        _ if status == 503 || status == 429 => Cause::Sink,
        _ if status == 404 => Cause::Destination,
        _ => Cause::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Refusal;

    #[test]
    fn an_acknowledgement_says_where_it_is() {
        for json in
            [r#"{"stream":"ORDERS","seq":7}"#, r#"{"stream":"ORDERS","seq":7,"duplicate":true,"domain":"d"}"#]
        {
            assert_eq!(answer("a", json.as_bytes()), Answer::Acked { receipt: Some("ORDERS@7".into()) });
        }
    }

    #[test]
    fn each_error_has_its_cause() {
        let error = |code: u64, err_code: u64, text: &str| {
            format!(
                r#"{{"error":{{"code":{code},"err_code":{err_code},"description":"{text}"}},"stream":"S","seq":0}}"#
            )
        };
        for (json, expected) in [
            (error(400, 10054, "message size exceeds maximum allowed"), Cause::Message),
            (error(400, 10097, "header size exceeds maximum allowed of 64k"), Cause::Message),
            (error(503, 10077, "maximum messages exceeded"), Cause::Destination),
            (error(503, 10077, "maximum bytes exceeded"), Cause::Destination),
            (error(400, 10109, "invalid operation on sealed stream"), Cause::Destination),
            (error(404, 10059, "stream not found"), Cause::Destination),
            (error(503, 10077, "write /data/1.blk: no space left on device"), Cause::Sink),
            (error(503, 10023, "insufficient resources"), Cause::Sink),
            (error(500, 10047, "insufficient storage resources available"), Cause::Sink),
            (error(503, 10039, "jetstream not enabled for account"), Cause::Sink),
            (error(409, 10158, "duplicate message id is in process"), Cause::Sink),
            (error(429, 10167, "too many requests"), Cause::Sink),
            (error(400, 99999, "something new"), Cause::Unclear),
            ("pong".to_owned(), Cause::Unclear),
        ] {
            let Answer::Refused(Refusal { cause, error, .. }) = answer("orders.created", json.as_bytes())
            else {
                panic!("{json}")
            };
            assert_eq!(cause, expected, "{json}");
            assert!(error.contains("`orders.created`"), "{error}");
        }
    }
}
