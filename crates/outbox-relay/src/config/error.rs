use std::fmt;

use figment::error::Kind as Wrong;

use super::keys::{self, Found, Kind};
use super::layers::Layer;
use super::origin_of;

/// What is wrong with a configuration: one line for each problem, saying what is allowed and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The problems, each one line.
    pub problems: Vec<String>,
}

impl ConfigError {
    /// Nothing, when there is no problem.
    pub(super) fn unless_empty(problems: Vec<String>) -> Result<(), Self> {
        if problems.is_empty() { Ok(()) } else { Err(Self { problems }) }
    }
}

impl From<String> for ConfigError {
    fn from(problem: String) -> Self {
        Self { problems: vec![problem] }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problems.join("; "))
    }
}

impl std::error::Error for ConfigError {}

/// Says of each value that could not be read where it stands and what may stand there.
pub(super) fn describe_all(error: figment::Error, layers: &[Layer]) -> ConfigError {
    ConfigError { problems: error.into_iter().map(|error| describe(&error, layers)).collect() }
}

fn describe(error: &figment::Error, layers: &[Layer]) -> String {
    let path = &error.path;
    let key = path.join(".");
    let origin = origin_of(layers, path);
    if let Wrong::UnknownField(name, allowed) = &error.kind {
        return format!("unknown key \"{key}\" ({origin}): {}", keys::suggestion(name, allowed));
    }
    let Found::Key(kind) = keys::find(path) else {
        return format!("{key} ({origin}): {}", error.kind);
    };
    let value = layers.iter().rev().find_map(|layer| layer.get(path));
    let allowed = kind.allowed();
    match (kind, value) {
        (Kind::Secret, _) | (_, None) => format!("{key} ({origin}) is wrong: it must be {allowed}"),
        (Kind::OneOf(words), Some(value)) => {
            let guess = value.as_str().and_then(|word| keys::closest(word, words));
            let hint = guess.map(|guess| format!("; did you mean {guess:?}?")).unwrap_or_default();
            format!("{key} ({origin}) is {}: it must be {allowed}{hint}", value.to_actual())
        }
        (_, Some(value)) => format!("{key} ({origin}) is {}: it must be {allowed}", value.to_actual()),
    }
}
