//! Whose fault an error answer is.

use ::redis::ServerError;

use crate::{Answer, Cause};

/// What Redis says of itself, whatever the command: it is not the one to write to, or cannot write now.
const SINK: &[&str] = &[
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOAUTH",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "WRONGPASS",
];

/// What it says of one stream. `MOVED`, `ASK`, `TRYAGAIN`: another node of a cluster has it.
const DESTINATION: &[&str] = &["ASK", "CROSSSLOT", "MOVED", "TRYAGAIN", "WRONGTYPE"];

/// How a transaction says why it was not run.
const DISCARDED: &str = "Transaction discarded because of: ";

/// The answer to a message whose `XADD`, or transaction, ended in this error.
pub(super) fn refused(stream: &str, error: &ServerError) -> Answer {
    let text = text(error);
    let text = text.split_once(DISCARDED).map_or(text.as_str(), |(_, reason)| reason);
    let (code, details) = text.split_once(' ').unwrap_or((text, ""));
    let cause = cause(code, details);
    let error = match (cause, code) {
        (Cause::Destination, "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT") => {
            format!(
                "stream `{stream}`: {text}; another node of the cluster has it, and this sink writes to one node"
            )
        }
        (Cause::Destination, "WRONGTYPE") => format!("`{stream}` is no stream: {text}"),
        (Cause::Sink, _) => text.to_owned(),
        _ => format!("stream `{stream}`: {text}"),
    };
    Answer::refused(cause, error)
}

fn cause(code: &str, details: &str) -> Cause {
    match code {
        "NOPERM" if details.contains("command") => Cause::Sink,
        "NOPERM" => Cause::Destination,
        code if SINK.contains(&code) => Cause::Sink,
        code if DESTINATION.contains(&code) => Cause::Destination,
        _ if details.starts_with("Elements are too large") => Cause::Message,
        _ => Cause::Unclear,
    }
}

/// The error in one line, without the arguments that Redis quotes from a command that it does not know.
pub(super) fn text(error: &ServerError) -> String {
    let details = error.details().unwrap_or_default();
    let details = details.split(", with args beginning with").next().unwrap_or_default();
    format!("{} {details}", error.code()).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use ::redis::{Value, parse_redis_value};

    use super::*;
    use crate::Refusal;

    fn error(line: &str) -> ServerError {
        match parse_redis_value(format!("-{line}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_error_has_its_cause() {
        for (line, expected) in [
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Cause::Destination),
            ("NOPERM No permissions to access a key", Cause::Destination),
            ("NOPERM this user has no permissions to access the 'x' key", Cause::Destination),
            ("MOVED 3999 127.0.0.1:6381", Cause::Destination),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Cause::Destination),
            ("NOPERM this user has no permissions to run the 'xadd' command", Cause::Sink),
            ("NOAUTH Authentication required.", Cause::Sink),
            ("WRONGPASS invalid username-password pair or user is disabled.", Cause::Sink),
            ("OOM command not allowed when used memory > 'maxmemory'.", Cause::Sink),
            ("READONLY You can't write against a read only replica.", Cause::Sink),
            ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", Cause::Sink),
            ("LOADING Redis is loading the dataset in memory", Cause::Sink),
            ("CLUSTERDOWN The cluster is down", Cause::Sink),
            ("NOREPLICAS Not enough good replicas to write.", Cause::Sink),
            ("MISCONF Errors writing to the AOF file: No space left on device", Cause::Sink),
            ("BUSY Redis is busy running a script.", Cause::Sink),
            ("ERR Elements are too large to be stored", Cause::Message),
            ("ERR something new", Cause::Unclear),
            (
                "EXECABORT Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'.",
                Cause::Sink,
            ),
            ("EXECABORT Transaction discarded because of previous errors.", Cause::Unclear),
        ] {
            let Answer::Refused(Refusal { cause, error, .. }) = refused("orders", &error(line)) else {
                panic!("{line}")
            };
            assert_eq!(cause, expected, "{line}");
            assert_eq!(error.contains("`orders`"), cause != Cause::Sink, "{error}");
        }
    }

    #[test]
    fn an_unknown_command_is_not_quoted_with_its_arguments() {
        let line = "ERR unknown command 'XADD', with args beginning with: 'orders' '*' 'payload' 'hunter2' ";
        assert_eq!(text(&error(line)), "ERR unknown command 'XADD'");
    }
}
