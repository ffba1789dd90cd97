//! A private rabbitmq server.
