//! The relay's binary.
fn main() {}
