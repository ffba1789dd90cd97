//! Metadata in documents. Payloads are passed over, not read.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::headers::{Attributes, created_at};
use super::{EventMeta, MetaError};

#[derive(Deserialize)]
struct Document {
    id: Option<String>,
    source: Option<String>,
    r#type: Option<String>,
    subject: Option<String>,
    time: Option<String>,
    outboxseq: Option<String>,
    datacontenttype: Option<String>,
}

#[derive(Deserialize)]
struct Line {
    id: Uuid,
    seq: i64,
    queue: String,
    aggregate_type: String,
    aggregate_id: String,
    event_type: Option<String>,
    headers: BTreeMap<String, String>,
    created_at: String,
}

pub(super) fn from_cloudevent(body: &[u8]) -> Result<EventMeta, MetaError> {
    let document: Document = parse(body)?;
    let attributes = Attributes {
        id: document.id,
        source: document.source,
        kind: document.r#type,
        subject: document.subject,
        time: document.time,
        outboxseq: document.outboxseq,
    };
    Ok(EventMeta { content_type: document.datacontenttype, ..attributes.meta()? })
}

pub(super) fn from_line(line: &[u8]) -> Result<EventMeta, MetaError> {
    let line: Line = parse(line)?;
    let header = |wanted: &str| {
        let found = line.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.map(|(_, value)| value.clone())
    };
    Ok(EventMeta {
        content_type: header("content-type"),
        traceparent: header("traceparent"),
        id: line.id,
        seq: line.seq,
        queue: Some(line.queue),
        aggregate_type: line.aggregate_type,
        aggregate_id: line.aggregate_id,
        event_type: line.event_type,
        created_at: created_at("created_at", Some(line.created_at))?,
    })
}

/// serde's own text may show what it found: only the place is passed on.
fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, MetaError> {
    serde_json::from_slice(json)
        .map_err(|error| MetaError::NotJson { line: error.line(), column: error.column() })
}
