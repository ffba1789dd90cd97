//! An event as the columns of its row.

use serde_json::Value;

use crate::NewEvent;
use crate::event::{Identity, Payload};

impl NewEvent {
    /// False where a second row with the id cannot be, short of a broken random generator.
    pub(crate) fn may_be_duplicate(&self) -> bool {
        !matches!(self.identity, Identity::Random(_))
    }

    pub(crate) fn payload_bytes(&self) -> usize {
        self.payload.len()
    }

    /// The `headers` column: a JSON object of strings in the order of their setting, or nothing.
    pub(crate) fn headers_json(&self) -> Option<String> {
        let headers = (!self.headers.is_empty()).then_some(&self.headers)?;
        let pairs: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{}:{}", Value::from(name.as_str()), Value::from(value.as_str())))
            .collect();
        Some(format!("{{{}}}", pairs.join(",")))
    }
}

impl Payload {
    pub(crate) fn json(&self) -> Option<&str> {
        match self {
            Self::Json(text) | Self::JsonText(text) => Some(text),
            Self::Bytes(_) | Self::Tombstone => None,
        }
    }

    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Json(_) | Self::JsonText(_) | Self::Tombstone => None,
        }
    }
}
