//! The redis sink beside pipelines of the redis crate, to a server that flushes with every write.

use std::time::Duration;

use anyhow::Result;
use outbox_store::Event;
use outbox_tests::brokers::redis::Redis;
use redis::aio::MultiplexedConnection;
use serde_json::json;

use super::{Batches, Runs, event, events, publish, sink, through_the_sink};
use crate::workload::Workload;

/// Measures and prints.
pub(crate) async fn run(work: Workload) -> Result<()> {
    let server = Redis::start(&[])?;
    let url = format!("redis://127.0.0.1:{}", server.port());
    let client = redis::Client::open(url.as_str())?;
    let events = events(&work);
    let sink = sink(json!({ "type": "redis", "url": url, "create": true }))?;
    let mut runs = Runs::default();
    for run in 0..work.runs {
        let [alone, through] = [format!("alone-{run}"), format!("sink-{run}")];
        for stream in [&alone, &through] {
            publish(&*sink, &[event(&work, 0)], stream).await?;
        }
        let batches = Batches::new(&events, &work);
        let bare = batches.send(async |batches: Batches| {
            let mut connection = client.get_multiplexed_async_connection().await?;
            connection.set_response_timeout(Duration::from_secs(60));
            while let Some(batch) = batches.next() {
                add(&mut connection, batch, &alone).await?;
            }
            Ok(())
        });
        let bare = bare.await?;
        runs.add(&work, bare, through_the_sink(&sink, &events, &work, &through).await?);
    }
    sink.close().await;
    runs.print("Redis", &work);
    Ok(())
}

/// One pipeline; keeps no order when an entry of it is refused.
async fn add(connection: &mut MultiplexedConnection, batch: &[Event], stream: &str) -> Result<()> {
    let mut pipeline = redis::pipe();
    for event in batch {
        let body = event.payload.bytes().cloned().unwrap_or_default();
        pipeline.cmd("XADD").arg(stream).arg("*").arg("payload").arg(&body[..]);
    }
    let ids: Vec<String> = pipeline.query_async(connection).await?;
    anyhow::ensure!(ids.len() == batch.len(), "not everything was added");
    Ok(())
}
