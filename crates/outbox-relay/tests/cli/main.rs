//! The binary as its users meet it: what it prints, where, and how it exits. All on SQLite.

mod bad_input;
mod bench;
mod operate;
mod running;
