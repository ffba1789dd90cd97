//! One event as one line of JSON, for stdout and files.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outbox_store::Payload;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::Message;

/// Room for the fields around a payload, to size a buffer by.
const METADATA_BYTES: usize = 384;

/// A batch as lines, with where each begins.
pub(crate) struct Lines {
    pub(crate) bytes: Vec<u8>,
    /// Offset of each message's line in `bytes`.
    pub(crate) starts: Vec<usize>,
}

impl Lines {
    /// The bytes of one message's line, its newline included.
    #[cfg(feature = "stdout")]
    pub(crate) fn line(&self, index: usize) -> &[u8] {
        let end = self.starts.get(index + 1).copied().unwrap_or(self.bytes.len());
        &self.bytes[self.starts[index]..end]
    }
}

/// Writes each message as a line.
pub(crate) fn lines(batch: &[Message<'_>]) -> Lines {
    let room = batch.iter().map(|message| METADATA_BYTES + message.event.payload.len()).sum();
    let mut bytes = Vec::with_capacity(room);
    let mut starts = Vec::with_capacity(batch.len());
    for message in batch {
        starts.push(bytes.len());
        push_line(&mut bytes, message);
    }
    Lines { bytes, starts }
}

fn push_line(out: &mut Vec<u8>, message: &Message<'_>) {
    let event = message.event;
    out.extend_from_slice(b"{\"id\":\"");
    out.extend_from_slice(event.id.hyphenated().encode_lower(&mut [0; 36]).as_bytes());
    out.extend_from_slice(b"\",\"seq\":");
    out.extend_from_slice(event.seq.to_string().as_bytes());
    push_text(out, "queue", Some(message.queue));
    push_text(out, "aggregate_type", Some(&event.aggregate_type));
    push_text(out, "aggregate_id", Some(&event.aggregate_id));
    push_text(out, "event_type", event.event_type.as_deref());
    push_text(out, "destination", message.destination.as_deref());
    out.extend_from_slice(b",\"headers\":");
    push_json(out, event.headers.as_deref().unwrap_or("{}").as_bytes());
    push_text(out, "created_at", rfc3339(event.created_at).as_deref());
    match &event.payload {
        Payload::Json(json) => {
            out.extend_from_slice(b",\"payload\":");
            push_json(out, json);
        }
        Payload::Text(bytes) | Payload::Binary(bytes) => {
            push_text(out, "payload_base64", Some(&STANDARD.encode(bytes)));
        }
        Payload::Tombstone => out.extend_from_slice(b",\"payload\":null"),
    }
    out.extend_from_slice(b"}\n");
}

fn push_text(out: &mut Vec<u8>, name: &str, value: Option<&str>) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
    // Serialising an Option<&str> into memory cannot fail.
    let _ = serde_json::to_writer(&mut *out, &value);
}

/// JSON text as it is; a raw line break in it can only be white space and would end the line.
fn push_json(out: &mut Vec<u8>, json: &[u8]) {
    let start = out.len();
    out.extend_from_slice(json);
    for byte in &mut out[start..] {
        if matches!(byte, b'\r' | b'\n') {
            *byte = b' ';
        }
    }
}

fn rfc3339(time: OffsetDateTime) -> Option<String> {
    time.to_offset(time::UtcOffset::UTC).format(&Rfc3339).ok()
}
