//! What was committed is what arrives: every event once, its bytes, its headers, its key's order; and the receipt that
//! its row keeps says where it is.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::{Context, Result, ensure};
use outbox_schema::NewEvent;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use uuid::Uuid;

use super::{Broker, Received, play};
use crate::stage::{Engine, Stage};

/// Events and keys of a run.
pub(crate) const EVENTS: usize = 20_000;
const KEYS: usize = 200;

/// What a broker cannot carry.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// A tombstone arrives as an empty body.
    pub(crate) tombstone_is_empty: bool,
}

/// What was put in.
struct Sent {
    id: Uuid,
    key: String,
    headers: BTreeMap<String, String>,
    body: Option<Vec<u8>>,
}

/// Delivers 20,000 events over 200 keys and compares.
pub(crate) async fn run(broker: &dyn Broker, engine: Engine, limits: Limits) -> Result<()> {
    let destination = format!("fidelity-{}", Uuid::now_v7().simple());
    broker.create(&destination).await?;
    let mut stage = Stage::set(engine, play(broker, &destination, "")).await?;
    let mut sent = Vec::with_capacity(EVENTS);
    let mut draws = StdRng::seed_from_u64(7);
    for _ in 0..EVENTS / 1000 {
        let (events, facts): (Vec<_>, Vec<_>) = (0..1000).map(|_| draw(&mut draws)).unzip();
        stage.enqueue(events).await?;
        sent.extend(facts);
    }
    stage.outbox(&["run", "--once"])?;
    let left = stage.number("SELECT count(*) FROM outbox_tasks WHERE status <> 'PUBLISHED'").await?;
    ensure!(left == 0, "{left} rows are not PUBLISHED");
    let received = broker.consume(&destination).await?;
    compare(&sent, &received, limits)?;
    let receipts = stage.receipts().await?;
    for message in &received {
        let receipt = receipts.get(&message.id()?).context("a receipt for each row")?;
        ensure!(!receipt.is_empty(), "an empty receipt");
        ensure!(
            message.position.is_empty() || *receipt == message.position,
            "receipt {receipt}, but the message is at {}",
            message.position
        );
    }
    Ok(())
}

/// An event of one of the kinds of payload there are, and what must come of it.
fn draw(draws: &mut StdRng) -> (NewEvent, Sent) {
    let id = Uuid::now_v7();
    let key = format!("k{}", draws.random_range(0..KEYS));
    let mut event = NewEvent::new("Order", &key).id(id).event_type("OrderChanged");
    let mut headers = BTreeMap::from([
        ("outbox-id".to_owned(), id.to_string()),
        ("outbox-queue".to_owned(), "default".to_owned()),
        ("outbox-aggregate-type".to_owned(), "Order".to_owned()),
        ("outbox-aggregate-id".to_owned(), key.clone()),
        ("outbox-event-type".to_owned(), "OrderChanged".to_owned()),
    ]);
    let length = draws.random_range(1..600);
    let bytes: Vec<u8> = (0..length).map(|_| draws.random()).collect();
    let body = match draws.random_range(0..10) {
        0 => None,
        1..=4 => {
            event = event.bytes(bytes.clone());
            headers.insert("content-type".to_owned(), "application/octet-stream".to_owned());
            Some(bytes)
        }
        _ => {
            // White space and the order of keys are the writer's own.
            let text = format!("{{ \"z\": {length},\t\"a\": \"{}\" }}", "ä€".repeat(length / 8));
            event = event.json_text(text.clone());
            headers.insert("content-type".to_owned(), "application/json".to_owned());
            Some(text.into_bytes())
        }
    };
    if draws.random_bool(0.5) {
        let trace = format!("00-{:032x}-{:016x}-01", draws.random::<u128>() | 1, draws.random::<u64>() | 1);
        event = event.header("traceparent", &trace).header("tenant", "acme & sons");
        headers.insert("traceparent".to_owned(), trace);
        headers.insert("tenant".to_owned(), "acme & sons".to_owned());
    }
    (event, Sent { id, key, headers, body })
}

fn compare(sent: &[Sent], received: &[Received], limits: Limits) -> Result<()> {
    let by_id: HashMap<Uuid, &Sent> = sent.iter().map(|sent| (sent.id, sent)).collect();
    let mut seen = HashSet::new();
    let mut last_seq: HashMap<&str, i64> = HashMap::new();
    for message in received {
        let id = message.id()?;
        let sent = by_id.get(&id).with_context(|| format!("nobody sent {id}"))?;
        ensure!(seen.insert(id), "{id} came twice");
        let body = match &sent.body {
            None if limits.tombstone_is_empty => Some(Vec::new()),
            body => body.clone(),
        };
        ensure!(message.body == body, "{id}: other bytes than were sent");
        for (name, value) in &sent.headers {
            ensure!(
                message.headers.get(name) == Some(value),
                "{id}: {name} is {:?}",
                message.headers.get(name)
            );
        }
        ensure!(message.headers.contains_key("outbox-created-at"), "{id}: no outbox-created-at");
        if let Some(key) = &message.key {
            ensure!(*key == sent.key, "{id}: key {key}");
        }
        let seq: i64 = message.headers.get("outbox-seq").context("outbox-seq")?.parse()?;
        let last = last_seq.entry(&sent.key).or_insert(0);
        ensure!(*last < seq, "key {}: {seq} after {last}", sent.key);
        *last = seq;
    }
    ensure!(seen.len() == sent.len(), "{} of {} arrived", seen.len(), sent.len());
    Ok(())
}
