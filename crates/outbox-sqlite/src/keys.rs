use std::collections::HashMap;

use rusqlite::ToSql;
use rusqlite::types::{ToSqlOutput, ValueRef};

/// Text as the database has it: SQLite does not promise that it is UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RawText(pub(crate) Vec<u8>);

impl ToSql for RawText {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(&self.0)))
    }
}

/// An ordering key.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) aggregate_type: RawText,
    pub(crate) aggregate_id: RawText,
}

/// The keys that a claim has met, each once.
#[derive(Default)]
pub(crate) struct Keys {
    indices: HashMap<Vec<u8>, usize>,
    keys: Vec<Key>,
    scratch: Vec<u8>,
}

impl Keys {
    /// The key's index, new or old.
    pub(crate) fn index(&mut self, aggregate_type: &[u8], aggregate_id: &[u8]) -> usize {
        // The length comes first, so that ("ab", "c") and ("a", "bc") differ.
        self.scratch.clear();
        self.scratch.extend_from_slice(&aggregate_type.len().to_le_bytes());
        self.scratch.extend_from_slice(aggregate_type);
        self.scratch.extend_from_slice(aggregate_id);
        if let Some(&index) = self.indices.get(&self.scratch) {
            return index;
        }
        let index = self.keys.len();
        self.indices.insert(self.scratch.clone(), index);
        self.keys.push(Key {
            aggregate_type: RawText(aggregate_type.to_vec()),
            aggregate_id: RawText(aggregate_id.to_vec()),
        });
        index
    }

    pub(crate) fn get(&self, index: usize) -> &Key {
        &self.keys[index]
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_index() {
        let mut keys = Keys::default();
        assert_eq!(keys.index(b"ab", b"c"), 0);
        assert_eq!(keys.index(b"a", b"bc"), 1);
        assert_eq!(keys.index(b"ab", b"c"), 0);
        assert_eq!((keys.len(), keys.get(1).aggregate_id.0.as_slice()), (2, b"bc".as_slice()));
    }
}
