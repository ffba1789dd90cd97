//! Where a message goes: an exchange and a routing key, written as RabbitMQ's own target addresses.

use std::fmt;

/// The longest name AMQP 0.9.1 can carry.
pub(super) const LONGEST_NAME: usize = 255;

/// An exchange, nameless for the default one, and a routing key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) exchange: String,
    pub(super) routing_key: String,
}

impl Address {
    /// Reads a destination: `/exchanges/EXCHANGE/ROUTING-KEY`, `/queues/QUEUE`, or a routing key on `exchange`.
    ///
    /// # Errors
    /// One line that says what is wrong with it.
    pub(super) fn parse(destination: &str, exchange: &str) -> Result<Self, String> {
        let (exchange, routing_key) = if let Some(rest) = destination.strip_prefix("/exchanges/") {
            let (exchange, key) = rest.split_once('/').unwrap_or((rest, ""));
            (segment(destination, exchange)?, segment(destination, key)?)
        } else if let Some(queue) = destination.strip_prefix("/queues/") {
            (String::new(), segment(destination, queue)?)
        } else {
            (exchange.to_owned(), destination.to_owned())
        };
        if exchange.is_empty() && destination.starts_with("/exchanges/") {
            return Err(format!(
                "destination `{destination}` names no exchange; write /exchanges/EXCHANGE/ROUTING-KEY, or /queues/QUEUE for the default one"
            ));
        }
        for (what, name) in [("exchange", &exchange), ("routing key", &routing_key)] {
            if name.len() > LONGEST_NAME {
                let bytes = name.len();
                return Err(format!(
                    "the {what} has {bytes} bytes and AMQP allows {LONGEST_NAME}; shorten the destination"
                ));
            }
        }
        Ok(Self { exchange, routing_key })
    }

    /// Whether it is the default exchange, on which the routing key is a queue's name.
    pub(super) fn is_queue(&self) -> bool {
        self.exchange.is_empty()
    }
}

/// The address that [`Address::parse`] reads back: a receipt.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_queue() {
            return write!(f, "/queues/{}", encode(&self.routing_key));
        }
        write!(f, "/exchanges/{}/{}", encode(&self.exchange), encode(&self.routing_key))
    }
}

fn segment(destination: &str, text: &str) -> Result<String, String> {
    let wrong = || {
        format!(
            "destination `{destination}` is no address: `/` in a name is written %2F, and a %, %25; write /exchanges/EXCHANGE/ROUTING-KEY or /queues/QUEUE"
        )
    };
    if text.contains('/') {
        return Err(wrong());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let byte = if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            match (digit(rest.next()), digit(rest.next())) {
                (Some(high), Some(low)) => u8::try_from(high * 16 + low).map_err(|_| wrong())?,
                _ => return Err(wrong()),
            }
        } else {
            byte
        };
        bytes.push(byte);
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

fn encode(text: &str) -> String {
    let may_stand = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let encode =
        |byte: u8| if may_stand(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(exchange: &str, routing_key: &str) -> Address {
        Address { exchange: exchange.to_owned(), routing_key: routing_key.to_owned() }
    }

    #[test]
    fn destinations_name_exchange_and_routing_key() {
        for (destination, expected) in [
            ("order.created", address("orders", "order.created")),
            ("a/b%", address("orders", "a/b%")),
            ("/exchanges/audit/order.created", address("audit", "order.created")),
            ("/exchanges/audit", address("audit", "")),
            ("/exchanges/a%2Fb/%23%25", address("a/b", "#%")),
            ("/queues/jobs", address("", "jobs")),
            ("/queues/%C3%A4", address("", "ä")),
        ] {
            assert_eq!(Address::parse(destination, "orders").unwrap(), expected, "{destination}");
        }
    }

    #[test]
    fn receipts_are_addresses() {
        for address in [address("orders", "order.created"), address("a/b", "ä #%"), address("", "jobs")] {
            assert_eq!(Address::parse(&address.to_string(), "another").unwrap(), address);
        }
        assert_eq!(address("orders", "order.created").to_string(), "/exchanges/orders/order.created");
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for destination in
            ["/exchanges/", "/exchanges//key", "/exchanges/a/b/c", "/queues/a/b", "/queues/%2", "/queues/%FF"]
        {
            let error = Address::parse(destination, "").unwrap_err();
            assert!(error.contains(destination) && error.contains("/queues/QUEUE"), "{error}");
        }
        let error = Address::parse(&"x".repeat(256), "").unwrap_err();
        assert!(error.contains("256 bytes") && error.contains("255"), "{error}");
    }
}
