//! The store contract's harness on each engine.

mod postgres;
mod sqlite;

use std::time::Duration;

use outbox_store::contract::{Available, When};

pub use postgres::PostgresHarness;
pub use sqlite::SqliteHarness;

/// Milliseconds from now until the row may go out; `None` when it is not about a time.
fn delay_ms(when: When) -> Option<i64> {
    let ms = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    match when {
        When::In(delay) => Some(ms(delay)),
        When::Ago(past) => Some(-ms(past)),
        When::Now | When::Parked => None,
    }
}

/// From the seconds until `available_at`, infinity included.
fn available(seconds: Option<f64>) -> Available {
    match seconds {
        None => Available::Ready,
        Some(f64::INFINITY) => Available::Parked,
        Some(seconds) if seconds <= 0.0 => Available::Due,
        Some(seconds) => Available::Later(seconds.ceil() as u64),
    }
}
