//! The nats sink against a real server.
