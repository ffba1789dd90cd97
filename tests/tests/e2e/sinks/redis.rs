//! The redis sink against a real server.
