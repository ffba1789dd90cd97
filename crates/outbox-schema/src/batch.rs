//! What inserting has in common whatever the library.

use std::collections::HashSet;

use uuid::Uuid;

use crate::{EnqueueError, NewEvent};

/// Most events in one statement: 13 parameters each on SQLite, which allows 32,766 in all.
const CHUNK_EVENTS: usize = 1000;
/// Payload bytes after which a statement takes no further event.
const CHUNK_BYTES: usize = 32 << 20;

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// A row with this id was inserted; it counts once the transaction commits.
    Inserted(Uuid),
    /// A row with this id was there already and was left as it is.
    Duplicate(Uuid),
}

impl Enqueued {
    /// The event's id, either way.
    #[must_use]
    pub fn id(self) -> Uuid {
        match self {
            Self::Inserted(id) | Self::Duplicate(id) => id,
        }
    }

    /// True when the row was there already.
    #[must_use]
    pub fn is_duplicate(self) -> bool {
        matches!(self, Self::Duplicate(_))
    }
}

/// `outbox_tasks` as it stands in SQL, with the quoted schema before it if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Table(String);

impl Default for Table {
    fn default() -> Self {
        Self("outbox_tasks".to_owned())
    }
}

impl Table {
    pub(crate) fn in_schema(schema: &str) -> Result<Self, EnqueueError> {
        if schema.is_empty() || schema.contains('\0') {
            let reason = "must not be empty or contain NUL".to_owned();
            return Err(EnqueueError::Invalid { field: "schema", reason });
        }
        if schema.len() > 63 {
            let actual = schema.len() as u64;
            return Err(EnqueueError::TooLarge { field: "schema", actual, limit: 63, unit: "bytes" });
        }
        Ok(Self(format!("\"{}\".outbox_tasks", schema.replace('"', "\"\""))))
    }

    /// The text of an SQL file for this table.
    pub(crate) fn render(&self, sql: &str) -> String {
        sql.replace("{table}", &self.0)
    }
}

/// The event as it is to be inserted, its limits checked.
pub(crate) fn prepare(event: NewEvent) -> Result<NewEvent, EnqueueError> {
    #[cfg(feature = "opentelemetry")]
    let event = event.traced();
    event.validate()?;
    Ok(event)
}

/// All of them, before the first row is inserted.
pub(crate) fn prepare_all(events: impl IntoIterator<Item = NewEvent>) -> Result<Vec<NewEvent>, EnqueueError> {
    events.into_iter().map(prepare).collect()
}

/// Of one event, by how many rows were inserted.
pub(crate) fn outcome(event: &NewEvent, inserted: u64) -> Enqueued {
    let id = event.event_id();
    if inserted == 1 { Enqueued::Inserted(id) } else { Enqueued::Duplicate(id) }
}

/// True where it must be read back which of the events were inserted.
pub(crate) fn may_have_duplicates(events: &[NewEvent]) -> bool {
    events.iter().any(NewEvent::may_be_duplicate)
}

/// Of many events, none of which can be a duplicate.
pub(crate) fn all_inserted(events: &[NewEvent]) -> impl Iterator<Item = Enqueued> {
    events.iter().map(|event| Enqueued::Inserted(event.event_id()))
}

/// Of many events, by the ids that were inserted. The first event with such an id is the one that was; the same id again
/// is its duplicate.
pub(crate) fn tell_apart(events: &[NewEvent], mut inserted: HashSet<Uuid>) -> impl Iterator<Item = Enqueued> {
    events.iter().map(move |event| {
        let id = event.event_id();
        if inserted.remove(&id) { Enqueued::Inserted(id) } else { Enqueued::Duplicate(id) }
    })
}

/// The events in order, in as many statements as they take.
pub(crate) fn chunks(events: &[NewEvent]) -> impl Iterator<Item = &[NewEvent]> {
    let mut rest = events;
    std::iter::from_fn(move || {
        let (chunk, later) = rest.split_at(chunk_length(rest));
        rest = later;
        (!chunk.is_empty()).then_some(chunk)
    })
}

fn chunk_length(events: &[NewEvent]) -> usize {
    let mut bytes = 0;
    events
        .iter()
        .take(CHUNK_EVENTS)
        .take_while(|event| {
            let room = bytes < CHUNK_BYTES;
            bytes += event.payload_bytes();
            room
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_bounded_and_complete() {
        let event = |bytes: usize| NewEvent::new("Order", "1").bytes(vec![0; bytes]);
        let lengths = |events: &[NewEvent]| chunks(events).map(<[_]>::len).collect::<Vec<_>>();

        assert_eq!(lengths(&[]), [0_usize; 0]);
        assert_eq!(lengths(&vec![event(0); 2001]), [1000, 1000, 1]);
        // 16 MiB each: the second one fills the statement.
        assert_eq!(lengths(&vec![event(16 << 20); 5]), [2, 2, 1]);
    }
}
