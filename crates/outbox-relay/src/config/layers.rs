//! Where values come from: the file, the environment, flags. Each is one layer over the ones before it.

use std::path::{Path, PathBuf};

use figment::value::{Dict, Map, Tag, Value};
use figment::{Metadata, Profile, Provider};

use super::keys::{self, Found, Kind};

/// Prefix of the environment variables that are read.
const PREFIX: &str = "OUTBOX_";

/// Variables with the prefix that set a command's flag and are no configuration.
const FLAGS: [&str; 2] = ["OUTBOX_CONFIG", "OUTBOX_LOG"];

/// Where the configuration is looked for when no `--config` is given.
const DEFAULT_FILES: [&str; 2] = ["outbox.toml", "/etc/outbox/outbox.toml"];

/// Who set a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    File(PathBuf),
    Environment,
    Flags,
}

impl Origin {
    /// The origin of one key, as a person would look for it.
    pub(super) fn describe(&self, path: &[String]) -> String {
        match self {
            Self::File(file) => file.display().to_string(),
            Self::Environment => format!("{PREFIX}{}", path.join("__").to_uppercase()),
            Self::Flags => "--set".to_owned(),
        }
    }
}

/// The values of one origin.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub(super) origin: Origin,
    pub(super) dict: Dict,
}

impl Layer {
    /// The value at a path, if this layer sets it.
    pub(super) fn get(&self, path: &[String]) -> Option<&Value> {
        let (last, tables) = path.split_last()?;
        let mut dict = &self.dict;
        for table in tables {
            dict = dict.get(table)?.as_dict()?;
        }
        dict.get(last)
    }
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(match self.origin {
            Origin::File(_) => "file",
            Origin::Environment => "environment",
            Origin::Flags => "flags",
        })
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Ok(Map::from([(Profile::Default, self.dict.clone())]))
    }
}

/// Finds the file to read: the one asked for, else the first default one that exists.
pub(super) fn locate(asked: Option<&Path>) -> Option<PathBuf> {
    match asked {
        Some(path) => Some(path.to_owned()),
        None => DEFAULT_FILES.iter().map(PathBuf::from).find(|path| path.exists()),
    }
}

/// Reads a file; every unknown key in it is a problem.
pub(super) fn from_file(path: &Path) -> Result<Layer, Vec<String>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        vec![format!("cannot read the configuration file {shown}: {error}; check --config")]
    })?;
    let table: toml::Table =
        toml::from_str(&text).map_err(|error| vec![syntax_error(path, &text, &error)])?;
    let dict = match Value::serialize(&table) {
        Ok(Value::Dict(_, dict)) => dict,
        _ => return Err(vec![format!("{shown} is not a table of keys; see `outbox config show`")]),
    };
    let mut problems = Vec::new();
    collect_unknown(&dict, &mut Vec::new(), &mut problems);
    if problems.is_empty() {
        return Ok(Layer { origin: Origin::File(path.to_owned()), dict });
    }
    let problem = |(path, hint): (String, String)| format!("unknown key {path:?} in {shown}: {hint}");
    Err(problems.into_iter().map(problem).collect())
}

/// One line without the source's text, which may hold a password.
fn syntax_error(path: &Path, text: &str, error: &toml::de::Error) -> String {
    let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    let message = error.message().lines().collect::<Vec<_>>().join(", ");
    format!("{} line {line} is not valid TOML: {message}", path.display())
}

fn collect_unknown(dict: &Dict, path: &mut Vec<String>, problems: &mut Vec<(String, String)>) {
    for (name, value) in dict {
        path.push(name.clone());
        match (keys::find(path), value.as_dict()) {
            (Found::Unknown { allowed, .. }, _) => {
                problems.push((path.join("."), keys::suggestion(name, &allowed)));
            }
            (Found::Key(Kind::Table(_) | Kind::Named(_) | Kind::Sinks), Some(inner)) => {
                collect_unknown(inner, path, problems);
            }
            _ => {}
        }
        path.pop();
    }
}

/// Reads `OUTBOX_*`; every unknown one is a warning.
pub(super) fn from_environment(variables: impl Iterator<Item = (String, String)>) -> (Layer, Vec<String>) {
    let mut layer = Layer { origin: Origin::Environment, dict: Dict::new() };
    let mut warnings = Vec::new();
    for (variable, text) in variables {
        let Some(name) = variable.strip_prefix(PREFIX).filter(|_| !FLAGS.contains(&variable.as_str())) else {
            continue;
        };
        let path: Vec<String> = name.to_lowercase().split("__").map(str::to_owned).collect();
        match set(&mut layer.dict, &path, &text) {
            Ok(()) => {}
            Err(hint) => {
                warnings.push(format!("{variable} is no setting of the relay and is ignored: {hint}"));
            }
        }
    }
    (layer, warnings)
}

/// Reads `--set KEY=VALUE`; every unknown key is a problem.
pub(super) fn from_flags(sets: &[String]) -> Result<Layer, Vec<String>> {
    let mut layer = Layer { origin: Origin::Flags, dict: Dict::new() };
    let mut problems = Vec::new();
    for assignment in sets {
        let Some((key, text)) = assignment.split_once('=') else {
            problems
                .push(format!("--set {assignment:?} has no value: write --set store.url=sqlite://outbox.db"));
            continue;
        };
        let path: Vec<String> = key.trim().split('.').map(str::to_owned).collect();
        if let Err(hint) = set(&mut layer.dict, &path, text) {
            problems.push(format!("unknown key {key:?} in --set: {hint}"));
        }
    }
    if problems.is_empty() { Ok(layer) } else { Err(problems) }
}

/// Puts text at a path, read as its key's kind wants it. A key of text gets the text as it is: a password that looks
/// like a number stays one.
fn set(dict: &mut Dict, path: &[String], text: &str) -> Result<(), String> {
    let kind = match keys::find(path) {
        Found::Key(kind) => kind,
        Found::Unknown { at, allowed } => return Err(keys::suggestion(&path[at], &allowed)),
    };
    let value = match kind {
        Kind::Count | Kind::Number | Kind::Table(_) | Kind::Named(_) | Kind::Sinks | Kind::Sink => {
            text.parse::<Value>().unwrap_or_else(|_| Value::from(text))
        }
        _ => Value::from(text),
    };
    insert(dict, path, value);
    Ok(())
}

fn insert(dict: &mut Dict, path: &[String], value: Value) {
    match path {
        [] => {}
        [last] => {
            dict.insert(last.clone(), value);
        }
        [table, rest @ ..] => {
            let inner = dict.entry(table.clone()).or_insert_with(|| Value::Dict(Tag::Default, Dict::new()));
            if let Value::Dict(_, inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(dotted: &str) -> Vec<String> {
        dotted.split('.').map(str::to_owned).collect()
    }

    fn environment(variables: &[(&str, &str)]) -> (Layer, Vec<String>) {
        from_environment(variables.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn text_from_the_environment_stays_text_and_numbers_become_numbers() {
        let (layer, warnings) = environment(&[
            ("OUTBOX_STORE__URL", "12345"),
            ("OUTBOX_QUEUES__DEFAULT__BATCH", "7"),
            ("OUTBOX_QUEUES__DEFAULT__RETRY__FACTOR", "2.5"),
            ("OUTBOX_SINKS__S__PASSWORD", "12345"),
            ("OUTBOX_LOG", "json"),
            ("PATH", "/bin"),
        ]);
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!(layer.get(&path("store.url")).and_then(Value::as_str), Some("12345"));
        assert_eq!(
            layer.get(&path("queues.default.batch")).and_then(figment::value::Value::to_u128),
            Some(7)
        );
        assert_eq!(
            layer.get(&path("queues.default.retry.factor")).and_then(figment::value::Value::to_f64),
            Some(2.5)
        );
        assert_eq!(layer.get(&path("sinks.s.password")).and_then(Value::as_str), Some("12345"));
    }

    #[test]
    fn unknown_variables_only_warn_and_never_show_their_value() {
        let (layer, warnings) =
            environment(&[("OUTBOX_PORT_9464_TCP", "tcp://10.0.0.1"), ("OUTBOX_STORE__URLL", "hunter2")]);
        assert!(layer.dict.is_empty());
        assert_eq!(warnings.len(), 2);
        assert!(warnings[1].contains(r#"did you mean "url"?"#), "{warnings:?}");
        assert!(!warnings.concat().contains("hunter2"));
    }

    #[test]
    fn flags_name_their_unknown_keys() {
        let problems = from_flags(&["sweeper.intervall=1s".to_owned(), "x".to_owned()]).unwrap_err();
        assert!(problems[0].contains(r#"did you mean "interval"?"#), "{problems:?}");
        assert!(problems[1].contains("has no value"), "{problems:?}");
    }
}
