//! Every key of the configuration, level by level: what unknown keys are compared with, and how text from an
//! environment variable is read.

use std::borrow::Cow;

/// What a key holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Text, taken as it is.
    Text,
    /// Text that is never shown whole.
    Secret,
    /// A time such as `60s`.
    Duration,
    /// A number of bytes such as `16MiB`.
    Size,
    /// A whole number.
    Count,
    /// Any number.
    Number,
    /// One of a few words.
    OneOf(&'static [&'static str]),
    /// A table with fixed keys.
    Table(&'static [Key]),
    /// A table whose keys are names, each holding a table with these keys.
    Named(&'static [Key]),
    /// A table of sinks by name.
    Sinks,
    /// A sink's table. What it may hold depends on its type and is known to the sinks alone.
    Sink,
}

impl Kind {
    /// What may be written here, for an error message.
    pub(super) fn allowed(self) -> Cow<'static, str> {
        match self {
            Self::Text | Self::Secret => "text in quotes".into(),
            Self::Duration => r#"a duration in quotes, such as "20s", "5m" or "4h""#.into(),
            Self::Size => r#"a size such as "16MiB""#.into(),
            Self::Count => "a whole number that is not negative, without quotes".into(),
            Self::Number => "a number without quotes, such as 6.0".into(),
            Self::OneOf(words) => format!("one of {}", quoted(words)).into(),
            Self::Table(_) | Self::Named(_) | Self::Sinks | Self::Sink => "a table".into(),
        }
    }
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
}

const fn key(name: &'static str, kind: Kind) -> Key {
    Key { name, kind }
}

/// The top level.
pub(super) const ROOT: &[Key] = &[
    key("store", Kind::Table(STORE)),
    key("queues", Kind::Named(QUEUE)),
    key("sinks", Kind::Sinks),
    key("sweeper", Kind::Table(&[key("interval", Kind::Duration)])),
    key("http", Kind::Table(&[key("listen", Kind::Text)])),
    key("relay", Kind::Table(RELAY)),
];

const STORE: &[Key] = &[
    key("url", Kind::Secret),
    key("url_file", Kind::Text),
    key("postgres", Kind::Table(POSTGRES)),
    key("sqlite", Kind::Table(SQLITE)),
];

const POSTGRES: &[Key] = &[
    key("schema", Kind::Text),
    key("wake_up", Kind::OneOf(&["notify", "poll"])),
    key("pooler", Kind::OneOf(&["none", "transaction"])),
];

const SQLITE: &[Key] = &[
    key("synchronous", Kind::OneOf(&["normal", "full"])),
    key("busy_timeout", Kind::Duration),
    key("checkpoint", Kind::Duration),
];

const QUEUE: &[Key] = &[
    key("sink", Kind::Text),
    key("destination", Kind::Text),
    key("ordering", Kind::OneOf(&["key", "none"])),
    key("batch", Kind::Count),
    key("batch_bytes", Kind::Size),
    key("lease", Kind::Duration),
    key("publish_timeout", Kind::Duration),
    key("published", Kind::OneOf(&["keep", "delete"])),
    key("keep_for", Kind::Duration),
    key("failed_keep_for", Kind::Duration),
    key("on_failed", Kind::OneOf(&["skip", "block"])),
    key("max_retries", Kind::Count),
    key("retry", Kind::Table(RETRY)),
];

const RETRY: &[Key] = &[
    key("initial", Kind::Duration),
    key("factor", Kind::Number),
    key("max", Kind::Duration),
    key("jitter", Kind::Number),
];

const RELAY: &[Key] = &[key("name", Kind::Text), key("shutdown_grace", Kind::Duration)];

/// Where a path leads.
pub(super) enum Found {
    /// To a key of this kind.
    Key(Kind),
    /// Nowhere: `allowed` are the keys of the level where it ends, `at` is the index of the segment that is unknown.
    Unknown { at: usize, allowed: Vec<&'static str> },
}

/// Follows a path of keys down from the top.
pub(super) fn find<S: AsRef<str>>(path: &[S]) -> Found {
    let mut level = Kind::Table(ROOT);
    for (at, segment) in path.iter().enumerate() {
        level = match level {
            Kind::Table(keys) => match keys.iter().find(|key| key.name == segment.as_ref()) {
                Some(key) => key.kind,
                None => return Found::Unknown { at, allowed: keys.iter().map(|key| key.name).collect() },
            },
            Kind::Named(keys) => Kind::Table(keys),
            Kind::Sinks => Kind::Sink,
            Kind::Sink => Kind::Text,
            _ => return Found::Unknown { at, allowed: Vec::new() },
        };
    }
    Found::Key(level)
}

/// The allowed word that is closest to `word`, if any is close.
pub(super) fn closest<'a>(word: &str, allowed: &[&'a str]) -> Option<&'a str> {
    allowed
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), *candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(word.len()) / 3 + 1)
        .min()
        .map(|(_, candidate)| candidate)
}

/// `; did you mean "x"?`, or what is allowed.
pub(super) fn suggestion(word: &str, allowed: &[&str]) -> String {
    match closest(word, allowed) {
        Some(candidate) => format!("did you mean {candidate:?}?"),
        None if allowed.is_empty() => "nothing is allowed there".to_owned(),
        None => format!("allowed are {}", quoted(allowed)),
    }
}

/// The words in quotes, separated by commas.
pub(super) fn quoted<S: AsRef<str>>(words: &[S]) -> String {
    words.iter().map(|word| format!("{:?}", word.as_ref())).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_word_is_suggested_and_a_distant_one_is_not() {
        assert_eq!(closest("leese", &["lease", "batch"]), Some("lease"));
        assert_eq!(closest("publish_timeot", &["published", "publish_timeout"]), Some("publish_timeout"));
        assert_eq!(closest("colour", &["lease", "batch"]), None);
    }

    #[test]
    fn paths_lead_to_kinds() {
        assert!(matches!(find(&["queues", "any", "retry", "factor"]), Found::Key(Kind::Number)));
        assert!(matches!(find(&["sinks", "any", "password"]), Found::Key(Kind::Text)));
        assert!(matches!(find(&["queues", "any", "retry", "facto"]), Found::Unknown { at: 3, .. }));
        assert!(matches!(find(&["queue"]), Found::Unknown { at: 0, .. }));
        assert!(matches!(find(&["store", "url", "x"]), Found::Unknown { at: 2, .. }));
    }
}
