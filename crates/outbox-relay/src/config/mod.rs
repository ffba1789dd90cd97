//! The configuration: defaults, then a file, then `OUTBOX_*`, then flags; checked before anything starts.

mod error;
mod keys;
mod layers;
mod validate;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use figment::Figment;
use figment::value::{Dict, Value};
use outbox_store::{OnFailed, Ordering, Published};
use serde::{Deserialize, Serialize};

use crate::settings::Backoff;
use layers::{Layer, Origin};

pub use error::ConfigError;
use outbox_sinks::secret;
pub use outbox_sinks::secret::SecretUrl;
pub use validate::{Engine, Settings, StoreSettings};

/// The configuration as it is written, with defaults for what is not.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The database.
    pub store: StoreConfig,
    /// The queues that this relay serves, by name.
    pub queues: BTreeMap<String, QueueConfig>,
    /// The sinks by name; what a table may hold depends on its `type`.
    pub sinks: BTreeMap<String, Dict>,
    /// Recovery and retention.
    pub sweeper: SweeperConfig,
    /// Probes and metrics.
    pub http: HttpConfig,
    /// The relay itself.
    pub relay: RelayConfig,
}

/// `[store]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// `sqlite://…` or `postgres://…`, as sqlx takes them.
    pub url: SecretUrl,
    /// Only for PostgreSQL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub postgres: Option<PostgresConfig>,
    /// Only for SQLite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sqlite: Option<SqliteConfig>,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self { url: SecretUrl::new("sqlite://outbox.db"), postgres: None, sqlite: None }
    }
}

/// `[store.postgres]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct PostgresConfig {
    /// The schema that holds the outbox tables.
    pub schema: String,
    /// How an idle relay learns of new rows.
    pub wake_up: WakeUp,
    /// What stands between the relay and the server.
    pub pooler: Pooler,
}

/// A connection pooler between the relay and a PostgreSQL server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooler {
    /// None, or one that gives each session a connection of its own.
    #[default]
    None,
    /// One that gives a connection for a transaction at a time: the relay asks for nothing that belongs to a session.
    Transaction,
}

/// How an idle relay learns of new rows on PostgreSQL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WakeUp {
    /// Producers notify while the relay sleeps.
    #[default]
    Notify,
    /// It looks four times a second. For applications with two-phase commits.
    Poll,
}

impl Default for PostgresConfig {
    fn default() -> Self {
        Self { schema: "public".to_owned(), wake_up: WakeUp::default(), pooler: Pooler::default() }
    }
}

/// How far SQLite syncs a commit that has no claim in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Synchronous {
    /// The WAL is synced at checkpoints.
    #[default]
    Normal,
    /// The WAL is synced at each commit.
    Full,
}

/// `[store.sqlite]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SqliteConfig {
    /// How far a commit is synced.
    pub synchronous: Synchronous,
    /// How long a statement waits for another connection's lock.
    #[serde(with = "humantime_serde")]
    pub busy_timeout: Duration,
    /// Time between WAL checkpoints; `None`, written `"off"`, leaves them to others.
    #[serde(with = "duration_or_off")]
    pub checkpoint: Option<Duration>,
}

impl Default for SqliteConfig {
    fn default() -> Self {
        Self {
            synchronous: Synchronous::Normal,
            busy_timeout: Duration::from_secs(5),
            checkpoint: Some(Duration::from_secs(60)),
        }
    }
}

/// `[queues.NAME]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct QueueConfig {
    /// Name of the sink under `[sinks]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sink: Option<String>,
    /// Template of the destination over the event's fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<String>,
    /// Whether each key's order is kept.
    pub ordering: Ordering,
    /// Most rows in one claim.
    pub batch: u32,
    /// Most payload bytes in one claim.
    #[serde(serialize_with = "size_text")]
    pub batch_bytes: ByteSize,
    /// How long a claim owns its rows.
    #[serde(with = "humantime_serde")]
    pub lease: Duration,
    /// How long a batch may take from before its claim to its last answer.
    #[serde(with = "humantime_serde")]
    pub publish_timeout: Duration,
    /// What becomes of delivered rows.
    pub published: Published,
    /// How long delivered rows are kept.
    #[serde(with = "humantime_serde")]
    pub keep_for: Duration,
    /// How long FAILED rows are kept; `None`, written `"off"`, keeps them until an operator acts.
    #[serde(with = "duration_or_off")]
    pub failed_keep_for: Option<Duration>,
    /// What a FAILED row does to its key's followers.
    pub on_failed: OnFailed,
    /// Retries for a row that sets none of its own.
    pub max_retries: u32,
    /// Backoff of retried rows.
    pub retry: Backoff,
}

impl Default for QueueConfig {
    fn default() -> Self {
        let policy = outbox_store::QueuePolicy::named("default");
        Self {
            sink: None,
            destination: None,
            ordering: policy.ordering,
            batch: policy.batch,
            batch_bytes: ByteSize::b(policy.batch_bytes),
            lease: policy.lease,
            publish_timeout: Duration::from_secs(20),
            published: policy.published,
            keep_for: policy.keep_for,
            failed_keep_for: policy.failed_keep_for,
            on_failed: policy.on_failed,
            max_retries: policy.max_retries,
            retry: Backoff::default(),
        }
    }
}

/// `[sweeper]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SweeperConfig {
    /// Time between sweeps.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
}

impl Default for SweeperConfig {
    fn default() -> Self {
        Self { interval: Duration::from_secs(5) }
    }
}

/// `[http]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Address of probes and metrics, or `"off"`.
    pub listen: String,
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self { listen: "127.0.0.1:9464".to_owned() }
    }
}

/// `[relay]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RelayConfig {
    /// Names this relay in claims and logs; `host-pid` when it is not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How long a stopping relay waits for what is in flight.
    #[serde(with = "humantime_serde")]
    pub shutdown_grace: Duration,
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self { name: None, shutdown_grace: Duration::from_secs(10) }
    }
}

/// A configuration and where it came from.
#[derive(Debug)]
pub struct Loaded {
    /// What is configured.
    pub config: Config,
    /// What was ignored, one line each.
    pub warnings: Vec<String>,
    /// The file that was read, if there was one.
    pub file: Option<PathBuf>,
    layers: Vec<Layer>,
}

/// One configured value as it may be shown.
#[derive(Debug, Serialize)]
pub struct Entry {
    /// Its key, levels separated by dots.
    pub key: String,
    /// Its value without secrets.
    pub value: String,
    /// Who set it.
    pub from: String,
}

impl Loaded {
    /// Every value in effect, secrets hidden, with who set it; sorted by key.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        if let Ok(serde_json::Value::Object(table)) = serde_json::to_value(&self.config) {
            self.flatten(&table, &mut Vec::new(), &mut entries);
        }
        entries
    }

    fn flatten(
        &self,
        table: &serde_json::Map<String, serde_json::Value>,
        path: &mut Vec<String>,
        entries: &mut Vec<Entry>,
    ) {
        for (name, value) in table {
            path.push(name.clone());
            match value {
                serde_json::Value::Object(inner) => self.flatten(inner, path, entries),
                // Headers of a sink are credentials as often as not, whatever they are called.
                serde_json::Value::String(_) if path.len() == 4 && path[2] == "headers" => {
                    entries.push(self.entry(path, secret::HIDDEN.to_owned()));
                }
                serde_json::Value::String(text) => {
                    entries.push(self.entry(path, secret::redact(name, text)));
                }
                other => entries.push(self.entry(path, other.to_string())),
            }
            path.pop();
        }
    }

    fn entry(&self, path: &[String], value: String) -> Entry {
        Entry { key: path.join("."), value, from: origin_of(&self.layers, path) }
    }
}

fn origin_of(layers: &[Layer], path: &[String]) -> String {
    layers
        .iter()
        .rev()
        .find(|layer| layer.get(path).is_some())
        .map_or_else(|| "default".to_owned(), |layer| layer.origin.describe(path))
}

/// Reads the configuration from the file (`asked`, or the first default one that exists), the environment and flags.
///
/// # Errors
/// A file that cannot be read, an unknown key in the file or a flag, a value of the wrong type: each one line.
pub fn load(
    asked: Option<&Path>,
    environment: impl Iterator<Item = (String, String)>,
    sets: &[String],
) -> Result<Loaded, ConfigError> {
    let file = layers::locate(asked);
    let mut problems = Vec::new();
    let mut found = Vec::new();
    match file.as_deref().map(layers::from_file) {
        Some(Ok(layer)) => found.push(layer),
        Some(Err(unknown)) => problems.extend(unknown),
        None => {}
    }
    let (layer, warnings) = layers::from_environment(environment);
    found.push(layer);
    match layers::from_flags(sets) {
        Ok(layer) => found.push(layer),
        Err(unknown) => problems.extend(unknown),
    }
    for layer in &mut found {
        resolve_secret_files(layer, &mut problems);
    }
    ConfigError::unless_empty(problems)?;
    let figment = found.iter().fold(Figment::new(), |figment, layer| figment.merge(layer));
    let config = figment.extract().map_err(|error| error::describe_all(error, &found))?;
    Ok(Loaded { config, warnings, file, layers: found })
}

/// Replaces `url_file`, `password_file` and the like by what is in the file, white space at its ends trimmed.
fn resolve_secret_files(layer: &mut Layer, problems: &mut Vec<String>) {
    let origin = layer.origin.clone();
    if let Some(Value::Dict(_, store)) = layer.dict.get_mut("store") {
        read_secrets(store, &["store".to_owned()], &origin, problems);
    }
    if let Some(Value::Dict(_, sinks)) = layer.dict.get_mut("sinks") {
        for (name, sink) in sinks {
            if let Value::Dict(_, sink) = sink {
                read_secrets(sink, &["sinks".to_owned(), name.clone()], &origin, problems);
            }
        }
    }
}

fn read_secrets(table: &mut Dict, path: &[String], origin: &Origin, problems: &mut Vec<String>) {
    let stems: Vec<String> = table
        .keys()
        .filter_map(|key| key.strip_suffix("_file"))
        .filter(|stem| *stem == "url" || secret::is_secret_key(stem))
        .map(str::to_owned)
        .collect();
    for stem in stems {
        let key = format!("{stem}_file");
        let Some(file) = table.remove(&key).and_then(Value::into_string) else {
            problems.push(format!("{}.{key} must be the path of a file, in quotes", path.join(".")));
            continue;
        };
        let shown = format!("{}.{key} = {file:?} ({})", path.join("."), origin.describe(path));
        match std::fs::read_to_string(&file) {
            Err(error) => {
                problems.push(format!("{shown} cannot be read: {error}; check path and permissions"));
            }
            Ok(_) if table.contains_key(&stem) => {
                problems.push(format!("{shown} and {stem} are both set: keep one of them"));
            }
            Ok(text) => {
                table.insert(stem, Value::from(text.trim()));
            }
        }
    }
}

/// A duration, or the word `off`.
mod duration_or_off {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.as_str() {
            "off" => Ok(None),
            _ => humantime::parse_duration(&text)
                .map(Some)
                .map_err(|_| de::Error::invalid_value(de::Unexpected::Str(&text), &r#"a duration or "off""#)),
        }
    }

    #[expect(clippy::ref_option, reason = "the signature that serde calls")]
    pub(super) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(duration) => serializer.collect_str(&humantime::format_duration(*duration)),
            None => serializer.serialize_str("off"),
        }
    }
}

fn size_text<S: serde::Serializer>(size: &ByteSize, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&size.display().iec())
}
