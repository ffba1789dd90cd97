use std::io::Read;

use anyhow::Context;
use outbox_schema::{EnqueueError, Enqueued, NewEvent, Outbox};
use sqlx::Connection;

use super::args::EnqueueArgs;
use super::{Failure, database, out};
use crate::config::{Engine, Settings, StoreSettings};

/// `outbox enqueue`
pub(super) async fn enqueue(settings: &Settings, args: EnqueueArgs) -> Result<(), Failure> {
    if !settings.queues.is_empty() && !settings.queues.iter().any(|queue| queue.policy.name == args.queue) {
        out::note(format_args!(
            "warning: no queue {:?} is configured here: does another relay serve it?",
            args.queue
        ));
    }
    let event = event(args)?;
    event.validate().map_err(anyhow::Error::from)?;
    let enqueued = insert(&settings.store, event).await?;
    if let Enqueued::Duplicate(_) = enqueued {
        out::note("already enqueued: nothing was inserted");
    }
    out::line(enqueued.id())
}

fn event(args: EnqueueArgs) -> anyhow::Result<NewEvent> {
    let mut event = NewEvent::new(args.aggregate_type, args.aggregate_id)
        .queue(args.queue)
        .headers(args.headers)
        .delay(args.delay.unwrap_or_default())
        .priority(args.priority);
    if let Some(event_type) = args.event_type {
        event = event.event_type(event_type);
    }
    if let Some(destination) = args.destination {
        event = event.destination(destination);
    }
    if let Some(max_retries) = args.max_retries {
        event = event.max_retries(max_retries);
    }
    if let Some(key) = args.key {
        event = event.idempotency_key(key);
    }
    let is_json = args.content_type.as_deref().is_none_or(is_json);
    if let Some(content_type) = args.content_type {
        event = event.content_type(content_type);
    }
    let Some(payload) = args.payload else {
        return Ok(event);
    };
    let bytes = read(&payload)?;
    if !is_json {
        return Ok(event.bytes(bytes));
    }
    let text = String::from_utf8(bytes)
        .context("the payload is no UTF-8 text, so no JSON: say what it is with --content-type")?;
    Ok(event.json_text(text))
}

/// `application/json`, `application/problem+json; charset=utf-8` …
fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence.ends_with("+json")
}

fn read(payload: &str) -> anyhow::Result<Vec<u8>> {
    if payload == "-" {
        let mut bytes = Vec::new();
        std::io::stdin()
            .lock()
            .read_to_end(&mut bytes)
            .context("cannot read the payload from standard input")?;
        return Ok(bytes);
    }
    match payload.strip_prefix('@') {
        Some(file) => std::fs::read(file).with_context(|| format!("cannot read the payload from {file}")),
        None => Ok(payload.as_bytes().to_vec()),
    }
}

async fn insert(store: &StoreSettings, event: NewEvent) -> anyhow::Result<Enqueued> {
    let failed = || format!("cannot enqueue into {}", store.url);
    match &store.engine {
        Engine::Postgres(config) => {
            let mut connection = database::postgres_connection(store).await.with_context(failed)?;
            let outbox = Outbox::in_schema(&config.schema)?;
            let enqueued =
                outbox.enqueue(&mut connection, event).await.map_err(explain).with_context(failed)?;
            connection.close().await.with_context(failed)?;
            Ok(enqueued)
        }
        Engine::Sqlite(config) => {
            let mut connection = database::sqlite_connection(store, config).await.with_context(failed)?;
            let enqueued =
                outbox_schema::enqueue(&mut connection, event).await.map_err(explain).with_context(failed)?;
            connection.close().await.with_context(failed)?;
            Ok(enqueued)
        }
    }
}

/// A missing table means one thing only.
fn explain(error: EnqueueError) -> anyhow::Error {
    let is_missing = match &error {
        EnqueueError::Database(sqlx::Error::Database(database)) => {
            database.code().is_some_and(|code| code == "42P01")
                || database.message().contains("no such table")
        }
        _ => false,
    };
    let error = anyhow::Error::from(error);
    if is_missing {
        error.context("the database has no outbox tables: run `outbox migrate up`")
    } else {
        error
    }
}
