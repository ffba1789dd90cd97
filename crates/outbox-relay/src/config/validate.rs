//! From what is written to what the relay is built from. Every rule that a type cannot say is here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use figment::error::{Actual, Kind as Wrong};
use figment::value::{Dict, Tag, Value};
use outbox_postgres::PostgresOptions;
use outbox_sinks::SinkConfig;
use outbox_sqlite::SqliteOptions;
use outbox_store::QueuePolicy;
use serde::Deserialize;

use super::keys::{closest, quoted, suggestion};
use super::layers::Origin;
use super::{Config, ConfigError, Loaded, PostgresConfig, QueueConfig, SecretUrl, SqliteConfig, origin_of};
use crate::route::DestinationTemplate;
use crate::settings::{Backoff, Envelope, QueueSettings};

/// Most rows in one claim: bounds what a lost claim makes others do again.
const MAX_BATCH: u32 = 50_000;

/// Longest backoff: a longer one is a typing error, and a store's clock has an end.
const MAX_BACKOFF: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// A configuration that can be used.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The database.
    pub store: StoreSettings,
    /// The queues to serve, sorted by name; possibly none.
    pub queues: Vec<QueueSettings>,
    /// The sinks by name.
    pub sinks: BTreeMap<String, SinkSettings>,
    /// Time between sweeps.
    pub sweep_interval: Duration,
    /// Address of probes and metrics; `None` is off.
    pub listen: Option<String>,
    /// This relay's name in claims and logs.
    pub relay: String,
    /// How long a stopping relay waits for what is in flight.
    pub shutdown_grace: Duration,
}

/// One sink.
#[derive(Clone, Debug)]
pub struct SinkSettings {
    /// Its type and its options.
    pub config: SinkConfig,
    /// How an event becomes a message for it.
    pub envelope: Envelope,
}

/// How to reach the database.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// Where it is, with the password.
    pub url: SecretUrl,
    /// Which one it is, with its own settings.
    pub engine: Engine,
}

/// The databases there are.
#[derive(Clone, Debug)]
pub enum Engine {
    /// PostgreSQL
    Postgres(PostgresConfig),
    /// SQLite
    Sqlite(SqliteConfig),
}

impl Loaded {
    /// Checks everything that a type cannot say.
    ///
    /// # Errors
    /// Every problem, one line each.
    pub fn validate(&mut self) -> Result<Settings, ConfigError> {
        let mut problems = Vec::new();
        let store = self.store().map_err(|problem| problems.push(problem));
        let sinks = self.sinks(&mut problems);
        let queues = queues(&self.config, &mut problems);
        let config = &self.config;
        let listen = listen(&config.http.listen).map_err(|problem| problems.push(problem));
        if config.sweeper.interval.is_zero() {
            problems.push("sweeper.interval is 0: it must be longer, such as \"5s\"".to_owned());
        }
        ConfigError::unless_empty(problems)?;
        let (Ok(store), Ok(listen)) = (store, listen) else {
            unreachable!("problems would have been reported")
        };
        Ok(Settings {
            store,
            queues,
            sinks,
            sweep_interval: config.sweeper.interval,
            listen,
            relay: config.relay.name.clone().unwrap_or_else(host_and_pid),
            shutdown_grace: config.relay.shutdown_grace,
        })
    }

    /// The store alone, for commands that need no more of the configuration.
    fn store(&self) -> Result<StoreSettings, String> {
        let store = &self.config.store;
        let engine = match scheme(store.url.expose()) {
            Some("sqlite") => {
                self.refuse_table("postgres", store.postgres.is_some())?;
                Engine::Sqlite(store.sqlite.clone().unwrap_or_default())
            }
            Some("postgres" | "postgresql") => {
                self.refuse_table("sqlite", store.sqlite.is_some())?;
                Engine::Postgres(store.postgres.clone().unwrap_or_default())
            }
            _ => {
                let origin = self.origin("store.url");
                return Err(format!(
                    "store.url ({origin}) begins with no known scheme: write sqlite://PATH or postgres://USER@HOST/DATABASE"
                ));
            }
        };
        check_url(store.url.expose(), &engine)
            .map_err(|problem| format!("store.url ({}): {problem}", self.origin("store.url")))?;
        if matches!(&engine, Engine::Postgres(config) if config.schema.is_empty()) {
            return Err("store.postgres.schema is empty: name a schema, such as \"public\"".to_owned());
        }
        Ok(StoreSettings { url: store.url.clone(), engine })
    }

    fn refuse_table(&self, table: &str, is_set: bool) -> Result<(), String> {
        if !is_set {
            return Ok(());
        }
        let (url, from) = (&self.config.store.url, self.origin("store.url"));
        let other = self.origin(&format!("store.{table}"));
        Err(format!(
            "[store.{table}] ({other}) does not fit store.url = \"{url}\" ({from}): remove the table or change the url"
        ))
    }

    fn origin(&self, key: &str) -> String {
        let path: Vec<String> = key.split('.').map(str::to_owned).collect();
        origin_of(&self.layers, &path)
    }

    fn sinks(&mut self, problems: &mut Vec<String>) -> BTreeMap<String, SinkSettings> {
        let mut sinks = BTreeMap::new();
        for (name, table) in self.config.sinks.clone() {
            match self.sink(&name, table) {
                Ok(settings) => {
                    sinks.insert(name, settings);
                }
                Err(problem) => problems.push(problem),
            }
        }
        sinks
    }

    fn sink(&mut self, name: &str, mut table: Dict) -> Result<SinkSettings, String> {
        let envelope = match table.remove("envelope") {
            None => Envelope::default(),
            Some(value) => {
                value.deserialize().map_err(|error| self.sink_problem(name, &["envelope"], &error))?
            }
        };
        loop {
            let value = Value::Dict(Tag::Default, table.clone());
            let error = match SinkConfig::deserialize(&value) {
                Ok(config) => return Ok(SinkSettings { config, envelope }),
                Err(error) => error,
            };
            match &error.kind {
                Wrong::UnknownField(field, allowed) if self.is_from_environment(name, field) => {
                    let path = sink_path(name, &[field]);
                    let hint = suggestion(field, allowed);
                    let variable = Origin::Environment.describe(&path);
                    self.warnings
                        .push(format!("{variable} is no setting of the relay and is ignored: {hint}"));
                    table.remove(field);
                }
                _ => return Err(self.sink_problem(name, &[], &error)),
            }
        }
    }

    fn is_from_environment(&self, sink: &str, field: &str) -> bool {
        let path = sink_path(sink, &[field]);
        let setter = self.layers.iter().rev().find(|layer| layer.get(&path).is_some());
        setter.is_some_and(|layer| layer.origin == Origin::Environment)
    }

    /// One line for what serde said of a sink's table.
    fn sink_problem(&self, name: &str, inner: &[&str], error: &figment::Error) -> String {
        let at: Vec<&str> = inner.iter().copied().chain(error.path.iter().map(String::as_str)).collect();
        let path = sink_path(name, &at);
        let key = path.join(".");
        match &error.kind {
            Wrong::UnknownField(field, allowed) => {
                let path = sink_path(name, &[field]);
                let origin = origin_of(&self.layers, &path);
                format!("unknown key \"{}\" in {origin}: {}", path.join("."), suggestion(field, allowed))
            }
            Wrong::UnknownVariant(word, allowed) => {
                let key = if inner.is_empty() { format!("sinks.{name}.type") } else { key };
                let hint = closest(word, allowed).map(|guess| format!("; did you mean {guess:?}?"));
                format!("{key} = {word:?}: it must be one of {}{}", quoted(allowed), hint.unwrap_or_default())
            }
            Wrong::MissingField(field) if field == "type" => {
                let types = quoted(SinkConfig::TYPES);
                format!("sinks.{name} has no type: add type = …, one of {types}")
            }
            Wrong::MissingField(field) => format!("sinks.{name} has no {field}: add {field} = …"),
            Wrong::InvalidType(actual, expected) | Wrong::InvalidValue(actual, expected) => {
                let origin = origin_of(&self.layers, &path);
                format!("{key} ({origin}) has {} where it must be {expected}", type_of(actual))
            }
            other => format!("{key}: {other}"),
        }
    }
}

/// The type, never the value: it may be a password.
fn type_of(actual: &Actual) -> &'static str {
    match actual {
        Actual::Bool(_) => "true or false",
        Actual::Unsigned(_) | Actual::Signed(_) | Actual::Float(_) => "a number",
        Actual::Str(_) | Actual::Char(_) => "text",
        Actual::Seq => "a list",
        Actual::Map => "a table",
        _ => "a value",
    }
}

fn sink_path(name: &str, inner: &[&str]) -> Vec<String> {
    ["sinks", name].iter().chain(inner).map(|segment| (*segment).to_owned()).collect()
}

/// Each store reads its own URLs; neither says a password back.
fn check_url(url: &str, engine: &Engine) -> Result<(), String> {
    match engine {
        Engine::Postgres(_) => PostgresOptions::from_url(url).map(drop),
        Engine::Sqlite(_) => SqliteOptions::from_url(url, "").map(drop),
    }
    .map_err(|error| error.to_string())
}

/// The text before the first colon.
fn scheme(url: &str) -> Option<&str> {
    url.split_once(':').map(|(scheme, _)| scheme)
}

fn listen(listen: &str) -> Result<Option<String>, String> {
    if listen == "off" {
        return Ok(None);
    }
    let address = listen.rsplit_once(':');
    match address {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(Some(listen.to_owned())),
        _ => Err(format!(
            "http.listen = {listen:?} is no address: write HOST:PORT, such as \"127.0.0.1:9464\", or \"off\""
        )),
    }
}

fn queues(config: &Config, problems: &mut Vec<String>) -> Vec<QueueSettings> {
    config.queues.iter().filter_map(|(name, queue)| self::queue(name, queue, config, problems)).collect()
}

fn queue(
    name: &str,
    queue: &QueueConfig,
    config: &Config,
    problems: &mut Vec<String>,
) -> Option<QueueSettings> {
    let before = problems.len();
    let sink = sink_of(name, queue, config, problems);
    check_limits(name, queue, problems);
    check_backoff(name, &queue.retry, problems);
    if let Some(template) = &queue.destination
        && let Err(problem) = DestinationTemplate::parse(template)
    {
        problems.push(format!("queues.{name}.destination: {problem}"));
    }
    let settings = QueueSettings {
        policy: Arc::new(policy(name, queue)),
        sink: sink?,
        destination: queue.destination.clone(),
        publish_timeout: queue.publish_timeout,
        retry: queue.retry.clone(),
    };
    check_lease(name, &settings, problems);
    (problems.len() == before).then_some(settings)
}

fn policy(name: &str, queue: &QueueConfig) -> QueuePolicy {
    QueuePolicy {
        name: name.to_owned(),
        ordering: queue.ordering,
        batch: queue.batch,
        batch_bytes: queue.batch_bytes.as_u64(),
        lease: queue.lease,
        published: queue.published,
        keep_for: queue.keep_for,
        failed_keep_for: queue.failed_keep_for,
        on_failed: queue.on_failed,
        max_retries: queue.max_retries,
    }
}

/// The queue's sink, if it names one that is defined.
fn sink_of(name: &str, queue: &QueueConfig, config: &Config, problems: &mut Vec<String>) -> Option<String> {
    let defined: Vec<&str> = config.sinks.keys().map(String::as_str).collect();
    match &queue.sink {
        Some(sink) if config.sinks.contains_key(sink) => Some(sink.clone()),
        Some(sink) => {
            let hint = match closest(sink, &defined) {
                Some(guess) => format!("did you mean {guess:?}?"),
                None if defined.is_empty() => format!("add a table [sinks.{sink}] with a type"),
                None => format!("defined are {}; or add a table [sinks.{sink}]", quoted(&defined)),
            };
            problems
                .push(format!("queues.{name}.sink = {sink:?}, but no sink of that name is defined: {hint}"));
            None
        }
        None => {
            let hint = match defined.as_slice() {
                [] => "add one under [sinks] and name it here".to_owned(),
                names => format!("add sink = …, one of {}", quoted(names)),
            };
            problems.push(format!("queues.{name} has no sink: {hint}"));
            None
        }
    }
}

fn check_limits(name: &str, queue: &QueueConfig, problems: &mut Vec<String>) {
    if name.is_empty() || name.len() > outbox_schema::MAX_QUEUE_BYTES {
        problems.push(format!(
            "queues.{name:?}: a queue's name has 1 to {} bytes",
            outbox_schema::MAX_QUEUE_BYTES
        ));
    }
    if !(1..=MAX_BATCH).contains(&queue.batch) {
        problems.push(format!("queues.{name}.batch = {}: it must be 1 to {MAX_BATCH}", queue.batch));
    }
    if queue.batch_bytes.as_u64() == 0 {
        problems.push(format!("queues.{name}.batch_bytes = 0: it must be at least 1, such as \"16MiB\""));
    }
    if queue.publish_timeout.is_zero() {
        problems.push(format!("queues.{name}.publish_timeout is 0: it must be longer, such as \"20s\""));
    }
}

fn check_backoff(name: &str, retry: &Backoff, problems: &mut Vec<String>) {
    if !(retry.factor >= 1.0 && retry.factor.is_finite()) {
        problems.push(format!("queues.{name}.retry.factor = {}: it must be 1 or more", retry.factor));
    }
    if !(0.0..=1.0).contains(&retry.jitter) {
        problems.push(format!("queues.{name}.retry.jitter = {}: it must be 0 to 1", retry.jitter));
    }
    if retry.initial > retry.max || retry.max > MAX_BACKOFF {
        problems.push(format!(
            "queues.{name}.retry.max = \"{}\": it must be retry.initial (\"{}\") to 366 days",
            humantime::format_duration(retry.max),
            humantime::format_duration(retry.initial),
        ));
    }
}

/// Without this rule a batch could still be on its way when somebody else may take its rows.
fn check_lease(name: &str, queue: &QueueSettings, problems: &mut Vec<String>) {
    let needed = queue.publish_timeout + queue.settle_margin();
    if queue.policy.lease > needed {
        return;
    }
    let show = humantime::format_duration;
    problems.push(format!(
        "queues.{name}.lease = \"{}\" is too short: it must be longer than publish_timeout (\"{}\") + settle margin (\"{}\"); \
         raise lease or lower publish_timeout",
        show(queue.policy.lease),
        show(queue.publish_timeout),
        show(queue.settle_margin()),
    ));
}

fn host_and_pid() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{host}-{}", std::process::id())
}

#[cfg(test)]
mod tests;
