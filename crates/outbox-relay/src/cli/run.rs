use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use outbox_store::{Store, StoreError};
use outbox_sweeper::SweeperSettings;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::args::RunArgs;
use super::{Failure, database, signals};
use crate::config::{ConfigError, Engine, Settings};
use crate::health::Health;
use crate::http;
use crate::{Drained, Relay, RelayParts, SinkBinding};

/// The first wait for a database that refuses …
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// … which doubles up to this.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// `outbox run`
pub(super) async fn run(settings: Settings, args: RunArgs) -> Result<(), Failure> {
    if settings.queues.is_empty() {
        return Err(ConfigError::from(database::NO_QUEUE.to_owned()).into());
    }
    let sinks = sinks(&settings)?;
    let shutdown = signals::shutdown()?;
    let store = database::unasked(&settings).await?;
    let listener = match &settings.listen {
        Some(address) if !args.once => Some(http::bind(address).await?),
        _ => None,
    };
    let listening =
        listener.as_ref().map(TcpListener::local_addr).transpose().map_err(anyhow::Error::from)?;
    let relay = Relay::new(parts(&settings, store.clone(), sinks)).map_err(ConfigError::from)?;
    let server = listener.map(|listener| serve(listener, relay.health(), &shutdown)).transpose()?;
    let ended = match wait_for_database(&settings, &store, &shutdown).await {
        Ok(true) => {
            announce(&settings, listening);
            deliver(relay, &shutdown, args.once).await
        }
        Ok(false) => Ok(Drained::default()),
        Err(error) => Err(error),
    };
    shutdown.cancel();
    store.close().await;
    if let Some(server) = server {
        server.await.context("the HTTP server died")??;
    }
    finish(ended?)
}

/// Probes and metrics from here on, also while the database is waited for. A server that breaks stops the relay.
fn serve(
    listener: TcpListener,
    health: Arc<Health>,
    shutdown: &CancellationToken,
) -> anyhow::Result<tokio::task::JoinHandle<anyhow::Result<()>>> {
    let metrics = http::install_recorder()?;
    let shutdown = shutdown.clone();
    Ok(tokio::spawn(async move {
        let _stop = shutdown.clone().drop_guard();
        http::serve(listener, health, metrics, shutdown).await
    }))
}

fn announce(settings: &Settings, listening: Option<SocketAddr>) {
    let names: Vec<&str> = settings.queues.iter().map(|queue| queue.policy.name.as_str()).collect();
    tracing::info!(relay = settings.relay, store = %settings.store.url, queues = names.join(","), "delivering");
    if let Some(address) = listening {
        tracing::info!(%address, "listening: /livez /readyz /metrics");
    }
}

async fn deliver(relay: Relay, shutdown: &CancellationToken, once: bool) -> anyhow::Result<Drained> {
    if once {
        return relay.run_once(shutdown.clone()).await;
    }
    relay.run(shutdown.clone()).await.map(|()| Drained::default())
}

/// Until the database answers and its schema is right; false when it was the shutdown that came first. Only a server
/// is waited for: a file that cannot be opened now will not be opened later.
async fn wait_for_database(
    settings: &Settings,
    store: &Arc<dyn Store>,
    shutdown: &CancellationToken,
) -> anyhow::Result<bool> {
    let url = &settings.store.url;
    let is_server = matches!(settings.store.engine, Engine::Postgres(_));
    let mut wait = FIRST_WAIT;
    let mut said = false;
    loop {
        let state = tokio::select! {
            () = shutdown.cancelled() => return Ok(false),
            state = store.schema_state() => state,
        };
        match state {
            Ok(state) => {
                if said {
                    tracing::info!(store = %url, "the database is there");
                }
                database::require_current(&state).with_context(|| format!("cannot use {url}"))?;
                return Ok(true);
            }
            Err(StoreError::Unavailable(error)) if is_server => {
                if !said {
                    tracing::warn!(store = %url, %error, "the database does not answer; waiting for it");
                    said = true;
                }
            }
            Err(error) => return Err(anyhow::Error::from(error).context(format!("cannot use {url}"))),
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(false),
            () = tokio::time::sleep(wait.mul_f64(rand::random_range(0.5..1.0))) => {}
        }
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

fn finish(drained: Drained) -> Result<(), Failure> {
    if drained.is_complete() {
        return Ok(());
    }
    let blocked: Vec<String> =
        drained.blocked.iter().map(|(queue, sink)| format!("{queue} (sink {sink})")).collect();
    let queues = blocked.join(", ");
    Err(anyhow!("due events are left because their sink is down: {queues}; see `outbox check`").into())
}

fn parts(settings: &Settings, store: Arc<dyn Store>, sinks: BTreeMap<String, SinkBinding>) -> RelayParts {
    RelayParts {
        name: settings.relay.clone(),
        store,
        queues: settings.queues.clone(),
        sinks,
        sweeper: SweeperSettings {
            interval: settings.sweep_interval,
            checkpoint: database::checkpoint_interval(&settings.store),
        },
        shutdown_grace: settings.shutdown_grace,
    }
}

/// The sinks, connected to nothing yet.
fn sinks(settings: &Settings) -> Result<BTreeMap<String, SinkBinding>, ConfigError> {
    let mut problems = Vec::new();
    let mut sinks = BTreeMap::new();
    for (name, sink) in &settings.sinks {
        match outbox_sinks::build(name, &sink.config) {
            Ok(built) => {
                sinks.insert(name.clone(), SinkBinding { sink: built, envelope: sink.envelope });
            }
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() { Ok(sinks) } else { Err(ConfigError { problems }) }
}
