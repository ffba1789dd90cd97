//! PostgreSQL: one array a column, so that the statement's text is the same for any number of events.

use uuid::Uuid;

use crate::NewEvent;

pub(crate) const INSERT: &str = include_str!("sql/postgres_insert.sql");
pub(crate) const INSERT_RETURNING: &str = include_str!("sql/postgres_insert_returning.sql");

/// The parameters of both statements, in their order.
pub(crate) struct Columns<'a> {
    pub(crate) ids: Vec<Uuid>,
    pub(crate) queues: Vec<&'a str>,
    pub(crate) aggregate_types: Vec<&'a str>,
    pub(crate) aggregate_ids: Vec<&'a str>,
    pub(crate) event_types: Vec<Option<&'a str>>,
    pub(crate) payloads: Vec<Option<&'a str>>,
    pub(crate) payload_bytes: Vec<Option<&'a [u8]>>,
    pub(crate) content_types: Vec<Option<&'a str>>,
    pub(crate) headers: Vec<Option<String>>,
    pub(crate) destinations: Vec<Option<&'a str>>,
    pub(crate) max_retries: Vec<Option<i32>>,
    pub(crate) priorities: Vec<i16>,
    pub(crate) delays_us: Vec<Option<i64>>,
}

impl<'a> Columns<'a> {
    pub(crate) fn of(events: &'a [NewEvent]) -> Self {
        fn column<'a, T>(events: &'a [NewEvent], value: impl Fn(&'a NewEvent) -> T) -> Vec<T> {
            events.iter().map(value).collect()
        }
        Self {
            ids: column(events, NewEvent::event_id),
            queues: column(events, |event| event.queue.as_str()),
            aggregate_types: column(events, |event| event.aggregate_type.as_str()),
            aggregate_ids: column(events, |event| event.aggregate_id.as_str()),
            event_types: column(events, |event| event.event_type.as_deref()),
            payloads: column(events, |event| event.payload.json()),
            payload_bytes: column(events, |event| event.payload.bytes()),
            content_types: column(events, |event| event.content_type.as_deref()),
            headers: column(events, NewEvent::headers_json),
            destinations: column(events, |event| event.destination.as_deref()),
            // Within i32 and i64: the limits are checked before.
            max_retries: column(events, |event| event.max_retries.map(|retries| retries as i32)),
            priorities: column(events, |event| event.priority),
            delays_us: column(events, |event| event.delay.map(|delay| delay.as_micros() as i64)),
        }
    }
}
