//! Private servers and helpers for the tests.
