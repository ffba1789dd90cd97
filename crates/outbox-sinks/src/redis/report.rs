//! What `outbox check` says of a server.

use ::redis::pipe;

use super::connection::{Lease, describe, setting_of, text_of, version};

/// What a server told of itself.
#[derive(Debug, Default)]
pub(super) struct Found {
    info: String,
    /// `None`: it does not say.
    appendfsync: Option<String>,
}

/// Asks it.
pub(super) async fn look(lease: &Lease<'_>) -> Result<Found, String> {
    let mut questions = pipe();
    questions.cmd("INFO").cmd("CONFIG").arg("GET").arg("appendfsync");
    let answers = lease.ask(&questions).await.map_err(|error| describe(&error))?;
    Ok(Found {
        info: answers.first().and_then(text_of).unwrap_or_default(),
        appendfsync: answers.get(1).and_then(setting_of),
    })
}

impl Found {
    fn get(&self, name: &str) -> Option<&str> {
        self.info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// One line: what it is and what of it weakens durability.
    ///
    /// # Errors
    /// What keeps events from being delivered there.
    pub(super) fn describe(
        &self,
        address: &str,
        wait_replicas: u32,
        wait_aof: bool,
    ) -> Result<String, String> {
        let Some((major, minor)) = version(&self.info) else {
            return Ok(format!(
                "answers at {address}; this user may not run INFO, so its durability is unknown"
            ));
        };
        let role = self.get("role").unwrap_or("unknown");
        if role == "slave" {
            return Err(format!("{address} is a replica, which takes no writes; name its master"));
        }
        let replicas: u32 = self.get("connected_slaves").and_then(|count| count.parse().ok()).unwrap_or(0);
        if replicas < wait_replicas {
            return Err(format!(
                "{address} has {replicas} replicas and `wait_replicas` = {wait_replicas}: nothing would count as delivered"
            ));
        }
        let aof = self.get("aof_enabled") == Some("1");
        if wait_aof && !aof {
            return Err(format!("{address} has appendonly no, and `wait_aof` needs it"));
        }
        let mut line = format!("Redis {major}.{minor} at {address}, {role} with {replicas} replicas; ");
        line.push_str(self.persistence(aof, wait_aof));
        line.push_str(self.eviction());
        if self.get("cluster_enabled") == Some("1") {
            line.push_str("; a node of a cluster: only streams in its own slots can be written");
        }
        Ok(line)
    }

    fn persistence(&self, aof: bool, wait_aof: bool) -> &'static str {
        match (aof, self.appendfsync.as_deref()) {
            (false, _) => {
                "appendonly no: a crash loses what came after the last snapshot (set appendonly yes and appendfsync always)"
            }
            (true, Some("always")) => "appendonly yes, appendfsync always",
            (true, _) if wait_aof => "appendonly yes, and each batch waits for it to be flushed",
            (true, Some("no")) => {
                "appendonly yes, appendfsync no: a crash can lose acknowledged events (set it to always)"
            }
            (true, Some(_)) => {
                "appendonly yes, appendfsync everysec: a crash can lose the last second of acknowledged events (set it to always, or `wait_aof = true`)"
            }
            (true, None) => {
                "appendonly yes; CONFIG GET is refused, so appendfsync is unknown (it should be always)"
            }
        }
    }

    fn eviction(&self) -> &'static str {
        let bounded = self.get("maxmemory").is_some_and(|bytes| bytes != "0");
        let evicts = self.get("maxmemory_policy").is_some_and(|policy| policy.starts_with("allkeys"));
        if bounded && evicts {
            "; maxmemory-policy may evict whole streams (set it to noeviction)"
        } else {
            ""
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(info: &str, appendfsync: Option<&str>) -> Found {
        let info = format!("redis_version:7.2.4\r\nrole:master\r\nconnected_slaves:1\r\n{info}");
        Found { info, appendfsync: appendfsync.map(str::to_owned) }
    }

    #[test]
    fn what_weakens_durability_is_said() {
        let aof = "aof_enabled:1\r\n";
        for (info, appendfsync, expected) in [
            ("aof_enabled:0\r\n", Some("always"), "appendonly no: a crash loses"),
            (aof, Some("everysec"), "the last second"),
            (aof, Some("no"), "can lose"),
            (aof, None, "is unknown"),
            (
                "aof_enabled:1\r\nmaxmemory:1000\r\nmaxmemory_policy:allkeys-lru\r\n",
                Some("always"),
                "evict whole streams",
            ),
            ("aof_enabled:1\r\ncluster_enabled:1\r\n", Some("always"), "cluster"),
        ] {
            let line = found(info, appendfsync).describe("h:1", 0, false).unwrap();
            assert!(line.contains(expected), "{line}");
        }
        let line = found("aof_enabled:1\r\nmaxmemory_policy:noeviction\r\n", Some("always"));
        let line = line.describe("h:1", 1, true).unwrap();
        assert_eq!(line, "Redis 7.2 at h:1, master with 1 replicas; appendonly yes, appendfsync always");
    }

    #[test]
    fn what_keeps_events_away_is_an_error() {
        let replica = Found { info: "redis_version:7.0.1\r\nrole:slave\r\n".to_owned(), appendfsync: None };
        assert!(replica.describe("h:1", 0, false).unwrap_err().contains("replica"));
        assert!(found("", None).describe("h:1", 2, false).unwrap_err().contains("`wait_replicas` = 2"));
        assert!(found("aof_enabled:0\r\n", None).describe("h:1", 0, true).unwrap_err().contains("wait_aof"));
        assert!(Found::default().describe("h:1", 0, false).unwrap().contains("unknown"));
    }
}
