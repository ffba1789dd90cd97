//! What `outbox check` says of the servers.

use async_nats::jetstream::stream::{Info, StorageType};
use futures_util::TryStreamExt;

use super::connection::Connection;

/// Streams that are named in one line.
const NAMED: usize = 5;

/// What the servers told of themselves.
#[derive(Debug)]
pub(super) struct Found {
    version: String,
    /// Name, whether it is in memory only, replicas.
    streams: Vec<(String, bool, usize)>,
}

/// Asks them.
pub(super) async fn look(connection: &Connection) -> Result<Found, String> {
    let jetstream = &connection.jetstream;
    let unusable =
        |error: String| format!("JetStream cannot be used: {error}; is it enabled for this account?");
    jetstream.query_account().await.map_err(|error| unusable(error.to_string()))?;
    let streams: Vec<Info> =
        jetstream.streams().try_collect().await.map_err(|error| unusable(error.to_string()))?;
    let durability =
        |info: Info| (info.config.name, info.config.storage == StorageType::Memory, info.config.num_replicas);
    Ok(Found {
        version: connection.client.server_info().version,
        streams: streams.into_iter().map(durability).collect(),
    })
}

impl Found {
    /// One line: what they are and what of it weakens durability.
    pub(super) fn describe(&self, address: &str) -> String {
        let mut line =
            format!("NATS {} at {address}, JetStream with {} streams", self.version, self.streams.len());
        let memory = self.named(|(_, memory, _)| *memory);
        let single = self.named(|(_, memory, replicas)| !*memory && *replicas < 2);
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

    fn named(&self, is_it: impl Fn(&(String, bool, usize)) -> bool) -> String {
        let mut names: Vec<&str> =
            self.streams.iter().filter(|stream| is_it(stream)).map(|(name, ..)| name.as_str()).collect();
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
        let mut streams = vec![("SAFE".to_owned(), false, 3), ("MEMORY".to_owned(), true, 3)];
        streams.extend((0..7).map(|n| (format!("S{n}"), false, 1)));
        let line = Found { version: "2.11.0".to_owned(), streams }.describe("h:4222");
        assert!(line.starts_with("NATS 2.11.0 at h:4222, JetStream with 9 streams; in memory"), "{line}");
        assert!(
            line.contains("loses them: MEMORY;") && line.ends_with("S0, S1, S2, S3, S4 and 2 more"),
            "{line}"
        );
        assert!(!line.contains("SAFE"), "{line}");
    }
}
