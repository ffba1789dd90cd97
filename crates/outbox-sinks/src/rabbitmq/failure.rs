//! What RabbitMQ's errors say about whose fault they are.

use lapin::ErrorKind;
use lapin::protocol::AMQPErrorKind;

use super::address::Address;
use crate::{Answer, Cause};

const CONTENT_TOO_LARGE: u16 = 311;
const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;

/// The answer to a publish that closed its channel, or lost its connection. A channel has one message at a time, so
/// what closes it is about that message alone.
pub(super) fn answer(address: &Address, error: &lapin::Error) -> Answer {
    match cause(error) {
        Cause::Sink => Answer::refused(Cause::Sink, describe(error)),
        cause => Answer::refused(cause, format!("{address}: {}", describe(error))),
    }
}

/// Whether the exchange is not there.
pub(super) fn is_missing(error: &lapin::Error) -> bool {
    closed_by(error) == Some(NOT_FOUND)
}

fn cause(error: &lapin::Error) -> Cause {
    match closed_by(error) {
        Some(NOT_FOUND | ACCESS_REFUSED) => Cause::Destination,
        // Larger than max_message_size, a header that RabbitMQ reads itself and cannot.
        Some(PRECONDITION_FAILED | CONTENT_TOO_LARGE) => Cause::Message,
        Some(_) => Cause::Unclear,
        None => Cause::Sink,
    }
}

/// The code with which the server closed the channel; `None` when it was not the channel alone.
fn closed_by(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(error) if matches!(error.kind(), AMQPErrorKind::Soft(_)) => {
            Some(error.get_id())
        }
        _ => None,
    }
}

/// One line; the server's own words where it said something.
pub(super) fn describe(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => {
            let (code, text) = (error.get_id(), error.get_message().as_str());
            format!("RabbitMQ answered {code} {text}")
        }
        ErrorKind::IOError(error) => format!("the connection to RabbitMQ is lost: {error}"),
        ErrorKind::InvalidChannelState(..) | ErrorKind::InvalidConnectionState(_) => {
            "the connection to RabbitMQ is lost".to_owned()
        }
        _ => format!("the connection to RabbitMQ is lost: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use lapin::protocol::AMQPError;

    use super::*;

    fn closed(code: u16, text: &str) -> lapin::Error {
        ErrorKind::ProtocolError(AMQPError::from_id(code, text.into()).unwrap()).into()
    }

    #[test]
    fn blame_goes_where_it_belongs() {
        let address = Address::parse("created", "orders").unwrap();
        for (code, expected) in [
            (404, Cause::Destination),
            (403, Cause::Destination),
            (406, Cause::Message),
            (311, Cause::Message),
            (405, Cause::Unclear),
            (320, Cause::Sink),
            (501, Cause::Sink),
            (530, Cause::Sink),
            (541, Cause::Sink),
        ] {
            let error = closed(code, "SOMETHING - happened");
            let Answer::Refused(refusal) = answer(&address, &error) else { panic!("{code}") };
            assert_eq!(refusal.cause, expected, "{code}");
            let said = format!("RabbitMQ answered {code} SOMETHING - happened");
            assert!(refusal.error.ends_with(&said), "{}", refusal.error);
            assert_eq!(refusal.error.starts_with("/exchanges/orders/"), expected != Cause::Sink);
        }
        let lost = lapin::Error::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        assert_eq!(cause(&lost), Cause::Sink);
    }
}
