use std::path::PathBuf;
use std::time::Duration;

use outbox_store::StoreError;

/// How durable a commit of the relay is against a power cut. Claims are always as with `Full`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Synchronous {
    /// A power cut may undo the last settles: their events are then delivered again.
    #[default]
    Normal,
    /// Every commit is flushed.
    Full,
}

/// How a [`crate::SqliteStore`] opens its database.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// The database file.
    pub path: PathBuf,
    /// The relay's name, written into its claims.
    pub relay: String,
    /// How long a write waits for another connection's write lock.
    pub busy_timeout: Duration,
    /// How durable commits are.
    pub synchronous: Synchronous,
    /// Create the file if it is missing.
    pub create: bool,
    /// Let SQLite checkpoint the WAL by itself as it grows, and at the end. Off when another tool, such as Litestream,
    /// does it.
    pub auto_checkpoint: bool,
}

impl SqliteOptions {
    /// The documented defaults for a file.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, relay: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            relay: relay.into(),
            busy_timeout: Duration::from_secs(5),
            synchronous: Synchronous::Normal,
            create: false,
            auto_checkpoint: true,
        }
    }

    /// The documented defaults for a URL: `sqlite://relative.db`, `sqlite:relative.db` or `sqlite:///absolute.db`,
    /// with `%20` for a space and so on. `?mode=rw` and `?mode=rwc` are accepted and change nothing.
    ///
    /// # Errors
    /// [`StoreError::Unfit`] for another scheme, no path, an in-memory database or another parameter.
    pub fn from_url(url: &str, relay: impl Into<String>) -> Result<Self, StoreError> {
        let unfit = |what: &str| {
            StoreError::Unfit(format!(
                "store.url {url:?} {what}; write sqlite://relative/path.db or sqlite:///absolute/path.db"
            ))
        };
        let rest = url.strip_prefix("sqlite:").ok_or_else(|| unfit("does not begin with sqlite:"))?;
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            if !matches!(parameter, "mode=rw" | "mode=rwc") {
                return Err(unfit(&format!(
                    "has the parameter {parameter:?}, and only mode=rw and mode=rwc are known"
                )));
            }
        }
        let path =
            percent_decoded(path).ok_or_else(|| unfit("has a path that is not percent-encoded UTF-8"))?;
        match path.as_str() {
            "" => Err(unfit("names no file")),
            ":memory:" => Err(unfit("is in memory, where no application can put a row")),
            path => Ok(Self::new(path, relay)),
        }
    }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(url: &str) -> Result<String, String> {
        SqliteOptions::from_url(url, "relay")
            .map(|options| options.path.to_string_lossy().into_owned())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn urls_name_files() {
        assert_eq!(path("sqlite://outbox.db").as_deref(), Ok("outbox.db"));
        assert_eq!(path("sqlite:outbox.db").as_deref(), Ok("outbox.db"));
        assert_eq!(path("sqlite:///var/lib/out%20box.db?mode=rwc").as_deref(), Ok("/var/lib/out box.db"));
    }

    #[test]
    fn other_urls_say_what_is_wrong() {
        for (url, what) in [
            ("postgres://host/db", "does not begin with sqlite:"),
            ("sqlite://", "names no file"),
            ("sqlite::memory:", "in memory"),
            ("sqlite://x.db?cache=shared", "cache=shared"),
            ("sqlite://x%2.db", "percent-encoded"),
        ] {
            let error = path(url).unwrap_err();
            assert!(error.contains(what) && error.contains("sqlite:///absolute/path.db"), "{error}");
        }
    }
}
