//! Pipelines of the redis crate.

use std::time::Duration;

use anyhow::Result;
use outbox_store::Event;
use redis::aio::MultiplexedConnection;

use super::Batches;

pub(super) async fn bare(url: &str, batches: Batches, stream: &str) -> Result<Duration> {
    let client = redis::Client::open(url)?;
    batches
        .send(async |batches: Batches| {
            let mut connection = client.get_multiplexed_async_connection().await?;
            connection.set_response_timeout(Duration::from_secs(60));
            while let Some(batch) = batches.next() {
                add(&mut connection, batch, stream).await?;
            }
            Ok(())
        })
        .await
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
