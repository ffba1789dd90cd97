//! A destination that does not exist, beside a good one in the same queue: its keys wait, with an alarm and uncharged;
//! the others are delivered; once it is there, everything arrives in order.

use std::time::Duration;

use anyhow::{Result, ensure};
use outbox_schema::NewEvent;
use uuid::Uuid;

use super::{Broker, play};
use crate::stage::{Engine, Stage};

const EACH: i64 = 40;

/// Rows go by turns to a destination that exists and one that does not.
pub(crate) async fn run(broker: &dyn Broker, engine: Engine) -> Result<()> {
    let suffix = Uuid::now_v7().simple().to_string();
    let good = broker.destination(&format!("good-{suffix}"));
    let bad = broker.destination(&format!("missing-{suffix}"));
    broker.create(&good).await?;
    let retry = "retry = { initial = \"100ms\", factor = 2.0, max = \"1s\", jitter = 0.2 }\nbatch = 20";
    let mut stage = Stage::set(engine, play(broker, &good, retry)).await?;
    let events: Vec<NewEvent> = (0..EACH)
        .flat_map(|n| {
            let good = NewEvent::new("Order", format!("good{}", n % 4)).json_text(format!("{{\"n\": {n}}}"));
            let waits = NewEvent::new("Order", format!("bad{}", n % 4)).json_text(format!("{{\"n\": {n}}}"));
            [good, waits.destination(&bad)]
        })
        .collect();
    stage.enqueue(events).await?;
    let mut relay = stage.relay("relay")?;
    let waits = Duration::from_secs(60);
    stage.until("SELECT count(*) FROM outbox_tasks WHERE status = 'PUBLISHED'", EACH, waits).await?;
    stage.until("SELECT count(*) FROM outbox_blocked_keys", 4, waits).await?;
    ensure!(stage.count("PUBLISHED").await? == EACH, "something reached a destination that is not there");
    ensure!(stage.count("FAILED").await? == 0, "a row FAILED");
    ensure!(
        stage.number("SELECT count(*) FROM outbox_tasks WHERE retry_count > 0").await? == 0,
        "a row was charged"
    );
    let log = relay.log();
    ensure!(log.contains("WARN") && log.contains(&bad), "no alarm that names {bad}: {log}");

    broker.create(&bad).await?;
    stage.until("SELECT count(*) FROM outbox_tasks WHERE status = 'PUBLISHED'", 2 * EACH, waits).await?;
    for (destination, keys) in [(&good, "good"), (&bad, "bad")] {
        let received = broker.consume(destination).await?;
        ensure!(received.len() == EACH as usize, "{destination} has {} messages", received.len());
        for key in (0..4).map(|n| format!("{keys}{n}")) {
            let of_key =
                received.iter().filter(|message| message.headers.get("outbox-aggregate-id") == Some(&key));
            let seqs = of_key
                .map(|message| Ok(message.headers["outbox-seq"].parse()?))
                .collect::<Result<Vec<i64>>>()?;
            ensure!(seqs.is_sorted() && seqs.len() == EACH as usize / 4, "{key}: {seqs:?}");
        }
    }
    relay.terminate();
    ensure!(relay.wait(Duration::from_secs(20))?.success(), "SIGTERM: {}", relay.log());
    Ok(())
}
