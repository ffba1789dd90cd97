//! The rabbitmq sink against a real server.
