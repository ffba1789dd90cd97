//! Workloads of the outbox relay.
fn main() {}
