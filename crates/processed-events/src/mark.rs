//! What all libraries have in common: ids, outcomes, batches, limits.

use std::borrow::Cow;
use std::collections::HashSet;
use std::time::Duration;

use uuid::Uuid;

use crate::ProcessedError;

/// Longest event id in bytes.
pub const MAX_EVENT_ID_BYTES: usize = 1024;

/// Most rows that a purge deletes in one statement.
pub const MAX_PURGE_BATCH: u32 = 100_000;

/// Longest horizon of a purge: ten years.
pub const MAX_HORIZON: Duration = Duration::from_secs(3650 * 24 * 3600);

/// Most ids in one statement.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "tokio-postgres", feature = "rusqlite"))]
pub(crate) const CHUNK_IDS: usize = 1000;

/// Whether this transaction is the first to process an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a duplicate must have no effect"]
pub enum Outcome {
    /// Nobody has processed it: let it have its effect, in this transaction.
    First,
    /// It was processed: skip it, and acknowledge it to the broker.
    Duplicate,
}

impl Outcome {
    /// True when the event is to have its effect.
    #[must_use]
    pub fn is_first(self) -> bool {
        self == Self::First
    }

    /// True when the event had its effect already.
    #[must_use]
    pub fn is_duplicate(self) -> bool {
        self == Self::Duplicate
    }
}

/// What an event's id can be given as: text, taken as it is, or a UUID, in the form in which the relay writes it.
pub trait EventId {
    /// The id as it is stored.
    fn as_text(&self) -> Cow<'_, str>;
}

impl EventId for str {
    fn as_text(&self) -> Cow<'_, str> {
        self.into()
    }
}

impl EventId for String {
    fn as_text(&self) -> Cow<'_, str> {
        self.as_str().into()
    }
}

impl EventId for Cow<'_, str> {
    fn as_text(&self) -> Cow<'_, str> {
        Cow::Borrowed(self)
    }
}

impl EventId for Uuid {
    fn as_text(&self) -> Cow<'_, str> {
        self.to_string().into()
    }
}

impl<T: EventId + ?Sized> EventId for &T {
    fn as_text(&self) -> Cow<'_, str> {
        (**self).as_text()
    }
}

/// The id's text, if it can be one.
pub(crate) fn checked(id: &(impl EventId + ?Sized)) -> Result<Cow<'_, str>, ProcessedError> {
    let id = id.as_text();
    if id.is_empty() || id.contains('\0') {
        let reason = "must not be empty or contain NUL: is it the id of an event?".to_owned();
        return Err(ProcessedError::Invalid { field: "event id", reason });
    }
    if id.len() > MAX_EVENT_ID_BYTES {
        let (actual, limit) = (id.len() as u64, MAX_EVENT_ID_BYTES as u64);
        return Err(ProcessedError::TooLarge { field: "event id", actual, limit, unit: "bytes" });
    }
    Ok(id)
}

/// A batch of ids in two orders.
#[derive(Debug)]
pub(crate) struct Batch {
    /// As given.
    ids: Vec<String>,
    /// Each once, in the order in which every batch inserts.
    sorted: Vec<String>,
}

impl Batch {
    pub(crate) fn new<I: EventId>(ids: impl IntoIterator<Item = I>) -> Result<Self, ProcessedError> {
        let ids: Vec<String> =
            ids.into_iter().map(|id| checked(&id).map(Cow::into_owned)).collect::<Result<_, _>>()?;
        let mut sorted = ids.clone();
        // Two transactions that insert the same ids in opposite orders each end up waiting for the other.
        sorted.sort_unstable();
        sorted.dedup();
        Ok(Self { ids, sorted })
    }

    /// What goes into one statement each.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = &[String]> {
        self.sorted.chunks(CHUNK_IDS)
    }

    /// An answer for each id as given, from the ids that were inserted: the first with such an id is the first.
    pub(crate) fn outcomes(self, mut inserted: HashSet<String>) -> Vec<Outcome> {
        let outcome = |id: &String| if inserted.remove(id) { Outcome::First } else { Outcome::Duplicate };
        self.ids.iter().map(outcome).collect()
    }
}

/// A purge's arguments, if they can be.
pub(crate) fn checked_purge(older_than: Duration, batch: u32) -> Result<(), ProcessedError> {
    if older_than > MAX_HORIZON {
        let (actual, limit) = (older_than.as_secs(), MAX_HORIZON.as_secs());
        return Err(ProcessedError::TooLarge { field: "older_than", actual, limit, unit: "seconds" });
    }
    if batch == 0 {
        let reason = format!("must be 1 to {MAX_PURGE_BATCH} rows");
        return Err(ProcessedError::Invalid { field: "batch", reason });
    }
    if batch > MAX_PURGE_BATCH {
        let (actual, limit) = (batch.into(), MAX_PURGE_BATCH.into());
        return Err(ProcessedError::TooLarge { field: "batch", actual, limit, unit: "rows" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_text_as_it_is_and_uuids_as_the_relay_writes_them() {
        let id = Uuid::from_u128(0x0198_ABCD_0000_7000_8000_0000_0000_0001);
        let text = "0198abcd-0000-7000-8000-000000000001";
        assert_eq!(checked(&id).unwrap(), text);
        assert_eq!(checked(text).unwrap(), text);
        assert_eq!(checked(&text.to_uppercase()).unwrap(), text.to_uppercase());
        assert!(checked("").unwrap_err().to_string().starts_with("event id: must not be empty"));
        assert!(checked("a\0").unwrap_err().to_string().contains("NUL"));
        assert!(checked(&"x".repeat(1024)).is_ok());
        let long = checked(&"x".repeat(1025)).unwrap_err().to_string();
        assert_eq!(long, "event id: 1025 bytes, at most 1024 are allowed");
    }

    #[test]
    fn a_batch_is_inserted_in_order_and_answered_as_given() {
        let batch = Batch::new(["c", "a", "c", "b", "a"]).unwrap();
        assert_eq!(batch.chunks().collect::<Vec<_>>(), [["a", "b", "c"]]);
        let inserted = ["a", "c"].map(str::to_owned).into();
        use Outcome::{Duplicate, First};
        assert_eq!(batch.outcomes(inserted), [First, First, Duplicate, Duplicate, Duplicate]);
        let many = Batch::new((0..2500).rev().map(|n| format!("{n:04}"))).unwrap();
        assert_eq!(many.chunks().map(<[_]>::len).collect::<Vec<_>>(), [1000, 1000, 500]);
        assert!(many.chunks().flatten().is_sorted());
        assert!(Batch::new(["a", ""]).is_err());
    }

    #[test]
    fn a_purge_has_limits() {
        assert!(checked_purge(Duration::from_secs(1), 1).is_ok());
        for (older_than, batch, expected) in [
            (Duration::ZERO, 0, "batch: must be 1 to 100000 rows"),
            (Duration::ZERO, 100_001, "batch: 100001 rows, at most 100000 are allowed"),
            (Duration::MAX, 1, "older_than: 18446744073709551615 seconds, at most 315360000 are allowed"),
        ] {
            assert_eq!(checked_purge(older_than, batch).unwrap_err().to_string(), expected);
        }
    }
}
