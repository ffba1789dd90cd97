//! The http sink against a real server.
