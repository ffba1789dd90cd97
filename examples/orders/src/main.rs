//! An order service and a consumer that keeps balances, joined by the outbox.

fn main() {}
