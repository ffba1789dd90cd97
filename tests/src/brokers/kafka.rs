//! A private kafka server.
