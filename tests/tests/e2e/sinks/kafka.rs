//! The kafka sink against a real server.
