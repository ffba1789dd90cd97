//! Secrets, shown without what makes them secret.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// What stands for a secret wherever one is shown.
pub const HIDDEN: &str = "***";

/// What secrets in the query of a URL are called as well.
const SECRET_PARAMETERS: [&str; 5] = ["api_key", "apikey", "key", "sig", "signature"];

/// A password, key or token. Debug and Serialize show `***`.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself: for the one who logs in with it, never for a log.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HIDDEN)
    }
}

/// A URL that may hold a password. Debug, Display and Serialize show it with `***` in the password's place.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct SecretUrl(String);

impl SecretUrl {
    /// Wraps a URL.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The URL with its password: for the one who connects, never for a log.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redact_url(&self.0))
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&redact_url(&self.0), f)
    }
}

impl Serialize for SecretUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&redact_url(&self.0))
    }
}

/// True for keys whose whole value is a secret.
#[must_use]
pub fn is_secret_key(key: &str) -> bool {
    !key.ends_with("_file") && ["password", "secret", "token"].iter().any(|word| key.contains(word))
}

/// The value of a key as it may be shown.
#[must_use]
pub fn redact(key: &str, value: &str) -> String {
    if is_secret_key(key) { HIDDEN.to_owned() } else { redact_url(value) }
}

/// A URL without its passwords; other text stays as it is.
///
/// Takes the last `@` for the end of the user's part: a password with an unescaped `/`, `?` or `@` makes a broken URL,
/// which is exactly the one that ends in an error message.
#[must_use]
pub fn redact_url(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let rest = match rest.rsplit_once('@') {
        Some((user, host)) if user.contains(':') => {
            let name = user.split(':').next().unwrap_or_default();
            format!("{name}:{HIDDEN}@{}", redact_query(host))
        }
        _ => redact_query(rest),
    };
    format!("{scheme}://{rest}")
}

fn redact_query(rest: &str) -> String {
    let Some((path, query)) = rest.split_once('?') else {
        return rest.to_owned();
    };
    let is_secret = |key: &str| is_secret_key(key) || SECRET_PARAMETERS.contains(&key);
    let shown = query.split('&').map(|pair| match pair.split_once('=') {
        Some((key, _)) if is_secret(&key.to_ascii_lowercase()) => format!("{key}={HIDDEN}"),
        _ => pair.to_owned(),
    });
    format!("{path}?{}", shown.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_hidden_wherever_a_url_may_carry_them() {
        for (url, shown) in [
            ("postgres://u:hunter2@h:5432/db", "postgres://u:***@h:5432/db"),
            ("postgres://u:hun/ter@2@h/db", "postgres://u:***@h/db"),
            ("postgres://u:hun?ter2@h/db", "postgres://u:***@h/db"),
            (
                "postgres:///db?host=/run&user=x&password=hunter2",
                "postgres:///db?host=/run&user=x&password=***",
            ),
            ("https://h/hook?room=7&key=hunter2&sig=x", "https://h/hook?room=7&key=***&sig=***"),
            ("postgres://u@h/db?sslmode=disable", "postgres://u@h/db?sslmode=disable"),
            ("sqlite:///home/a@b/outbox.db", "sqlite:///home/a@b/outbox.db"),
            ("sqlite://outbox.db", "sqlite://outbox.db"),
            ("plain", "plain"),
        ] {
            assert_eq!(redact_url(url), shown);
        }
    }

    #[test]
    fn a_secret_url_is_never_debugged_whole() {
        let url = SecretUrl::new("postgres://u:hunter2@h/db");
        assert!(!format!("{url:?} {url} {}", serde_json::to_string(&url).unwrap()).contains("hunter2"));
        let secret = Secret::new("hunter2");
        assert!(!format!("{secret:?} {}", serde_json::to_string(&secret).unwrap()).contains("hunter2"));
    }

    #[test]
    fn secret_keys_are_hidden_and_their_files_are_not() {
        assert_eq!(redact("sasl_password", "hunter2"), HIDDEN);
        assert_eq!(redact("password_file", "/run/secrets/p"), "/run/secrets/p");
    }
}
