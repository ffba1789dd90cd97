//! A message as an entry of a stream.

use ::redis::Cmd;

use crate::Message;

/// The field with the body. A tombstone has none.
const PAYLOAD: &str = "payload";

/// What an entry needs beside names and values, about.
const OVERHEAD: usize = 160;

/// How far a stream is cut with each entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trim {
    pub(super) length: u64,
    pub(super) exact: bool,
}

/// Why a message can never be an entry, if so. `max_value` is the longest string that the server takes, in bytes: a
/// longer one makes it close the connection, so that nobody could tell which message is to blame.
pub(super) fn unsendable(message: &Message<'_>, max_value: u64) -> Option<String> {
    if message.destination.is_none() {
        return Some("no destination: name the stream".to_owned());
    }
    let too_long = |length: usize| length as u64 > max_value;
    for (name, value) in &message.headers {
        if name == PAYLOAD {
            return Some(format!(
                "header `{PAYLOAD}` is the field that carries the payload; rename the header"
            ));
        }
        if too_long(name.len().max(value.len())) {
            return Some(format!(
                "header `{name:.100}` is longer than the server's proto-max-bulk-len of {max_value} bytes"
            ));
        }
    }
    let length = message.body.as_ref().map_or(0, bytes::Bytes::len);
    too_long(length).then(|| {
        format!("too large: the payload has {length} bytes, the server's proto-max-bulk-len is {max_value}")
    })
}

/// Bytes of an entry on the wire, about.
pub(super) fn size(message: &Message<'_>) -> usize {
    let headers: usize = message.headers.iter().map(|(name, value)| name.len() + value.len() + 16).sum();
    OVERHEAD + headers + message.body.as_ref().map_or(0, bytes::Bytes::len)
}

/// `XADD stream [NOMKSTREAM] [MAXLEN [~] n] * field value …`
pub(super) fn xadd(message: &Message<'_>, create: bool, trim: Option<Trim>) -> Cmd {
    let arguments = 8 + 2 * message.headers.len();
    let mut command = Cmd::with_capacity(arguments, size(message));
    command.arg("XADD").arg(message.destination.as_deref().unwrap_or_default());
    if !create {
        command.arg("NOMKSTREAM");
    }
    if let Some(trim) = trim {
        command.arg("MAXLEN");
        if !trim.exact {
            command.arg("~");
        }
        command.arg(trim.length);
    }
    command.arg("*");
    for (name, value) in &message.headers {
        command.arg(name.as_bytes()).arg(value.as_bytes());
    }
    if let Some(body) = &message.body {
        command.arg(PAYLOAD).arg(&body[..]);
    }
    command
}
