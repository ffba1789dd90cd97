//! `/livez`, `/readyz` and `/metrics` at `http.listen`. Nothing here asks the database or a sink: what is shown is what
//! the relay's loops last saw.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::health::{Health, Snapshot};

/// Seconds. An event's way is milliseconds when all is well and hours when a sink was down.
const EVENT_BUCKETS: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0, 3600.0, 86_400.0];

/// Seconds. One statement's way to the database and back.
const STATEMENT_BUCKETS: [f64; 13] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// Histograms hold single observations until they are gathered: this often, so that they stay small unscraped.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Collects the process's metrics from now on.
///
/// # Errors
/// When the process collects them already.
pub fn install_recorder() -> anyhow::Result<PrometheusHandle> {
    let full = |name: &str| Matcher::Full(name.to_owned());
    PrometheusBuilder::new()
        .set_buckets_for_metric(full("outbox_end_to_end_seconds"), &EVENT_BUCKETS)?
        .set_buckets_for_metric(full("outbox_wait_seconds"), &EVENT_BUCKETS)?
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &STATEMENT_BUCKETS)?
        .install_recorder()
        .context("cannot collect metrics")
}

/// Binds the address.
///
/// # Errors
/// Names the address and what to change.
pub async fn bind(address: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| {
        format!("cannot listen on http.listen = {address:?}: choose another address, or \"off\"")
    })
}

/// Answers until `shutdown`.
///
/// # Errors
/// When the listener breaks.
pub async fn serve(
    listener: TcpListener,
    health: Arc<Health>,
    metrics: PrometheusHandle,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let server = axum::serve(listener, router(health, metrics.clone()));
    tokio::select! {
        // Not a graceful end: an open connection of a probe must not hold the relay up.
        () = shutdown.cancelled() => Ok(()),
        () = upkeep(&metrics) => Ok(()),
        ended = server => ended.context("the HTTP listener broke"),
    }
}

async fn upkeep(metrics: &PrometheusHandle) {
    let mut ticks = tokio::time::interval(UPKEEP_INTERVAL);
    loop {
        ticks.tick().await;
        metrics.run_upkeep();
    }
}

#[derive(Clone)]
struct Shared {
    health: Arc<Health>,
    metrics: PrometheusHandle,
}

fn router(health: Arc<Health>, metrics: PrometheusHandle) -> Router {
    Router::new()
        .route("/livez", get(async |State(shared): State<Shared>| livez(&shared.health.snapshot())))
        .route("/readyz", get(async |State(shared): State<Shared>| readyz(&shared.health.snapshot())))
        .route("/metrics", get(async |State(shared): State<Shared>| exposition(&shared.metrics)))
        .with_state(Shared { health, metrics })
}

fn livez(snapshot: &Snapshot) -> Response {
    json(snapshot.is_live(), &serde_json::json!({ "live": snapshot.is_live(), "loops": snapshot.loops }))
}

fn readyz(snapshot: &Snapshot) -> Response {
    let body = serde_json::json!({
        "ready": snapshot.is_ready(),
        "store": snapshot.store,
        "sinks": snapshot.sinks,
    });
    json(snapshot.is_ready(), &body)
}

fn json(good: bool, body: &impl Serialize) -> Response {
    let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    match serde_json::to_string(body) {
        Ok(text) => (status, [(header::CONTENT_TYPE, "application/json")], text + "\n").into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn exposition(metrics: &PrometheusHandle) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics.render()).into_response()
}
