//! A private redis server.
