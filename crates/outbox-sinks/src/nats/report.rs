//! What `outbox check` says of the servers.

use async_nats::jetstream::response::Response;
use serde::Deserialize;
use serde_json::json;

use super::connection::Connection;

/// Streams that are named in one line.
const NAMED: usize = 5;

/// What the servers told of themselves.
#[derive(Debug)]
pub(super) struct Found {
    version: String,
    streams: List,
}

/// The first page of the account's streams. Of their settings only what matters here is read, so that servers of
/// other versions are understood.
#[derive(Debug, Deserialize)]
struct List {
    total: usize,
    #[serde(default)]
    streams: Option<Vec<Stream>>,
}

#[derive(Debug, Deserialize)]
struct Stream {
    config: Settings,
}

#[derive(Debug, Deserialize)]
struct Settings {
    name: String,
    storage: String,
    num_replicas: usize,
}

/// Asks them.
pub(super) async fn look(connection: &Connection) -> Result<Found, String> {
    let unusable =
        |error: String| format!("JetStream cannot be used: {error}; is it enabled for this account?");
    let listed = connection.jetstream.request("STREAM.LIST", &json!({ "offset": 0 })).await;
    match listed.map_err(|error| unusable(error.to_string()))? {
        Response::Ok(streams) => Ok(Found { version: connection.client.server_info().version, streams }),
        Response::Err { error } => Err(unusable(error.to_string())),
    }
}

impl Found {
    /// One line: what they are and what of it weakens durability.
    pub(super) fn describe(&self, address: &str) -> String {
        let mut line =
            format!("NATS {} at {address}, JetStream with {} streams", self.version, self.streams.total);
        let memory = self.named(|stream| stream.storage == "memory");
        let single = self.named(|stream| stream.storage != "memory" && stream.num_replicas < 2);
        if !memory.is_empty() {
            line += &format!("; in memory, a restart loses them: {memory}");
        }
        if !single.is_empty() {
            line += &format!(
                "; one replica, a power cut can lose what was acknowledged since the last sync_interval: {single}"
            );
        }
        line
    }

    fn named(&self, is_it: impl Fn(&Settings) -> bool) -> String {
        let streams = self.streams.streams.iter().flatten().map(|stream| &stream.config);
        let mut names: Vec<&str> =
            streams.filter(|stream| is_it(stream)).map(|stream| stream.name.as_str()).collect();
        names.sort_unstable();
        let more = names.len().saturating_sub(NAMED);
        names.truncate(NAMED);
        let named = names.join(", ");
        if more > 0 { format!("{named} and {more} more") } else { named }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_weakens_durability_is_said() {
        let stream = |name: &str, storage: &str, replicas: u32| json!({"config": {"name": name, "storage": storage, "num_replicas": replicas, "retention": "limits"}});
        let mut streams = vec![stream("SAFE", "file", 3), stream("MEMORY", "memory", 3)];
        streams.extend((0..7).map(|n| stream(&format!("S{n}"), "file", 1)));
        let streams = serde_json::from_value(json!({"total": 9, "offset": 0, "streams": streams})).unwrap();
        let line = Found { version: "2.11.0".to_owned(), streams }.describe("h:4222");
        assert!(line.starts_with("NATS 2.11.0 at h:4222, JetStream with 9 streams; in memory"), "{line}");
        assert!(
            line.contains("loses them: MEMORY;") && line.ends_with("S0, S1, S2, S3, S4 and 2 more"),
            "{line}"
        );
        assert!(!line.contains("SAFE"), "{line}");
    }
}
