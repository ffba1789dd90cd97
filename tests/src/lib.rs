//! Private servers, relay processes and the harnesses of the store contract, for the tests in `tests/`.

pub mod harness;
pub mod postgres;
pub mod process;
pub mod protocol;
