//! A private nats server.
