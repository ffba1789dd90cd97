//! The nats sink beside a loop around async-nats, to a stream on the disk with one replica.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::Result;
use async_nats::HeaderMap;
use async_nats::jetstream::context::PublishAckFuture;
use outbox_tests::brokers::nats::Nats;
use serde_json::{Value, json};

use super::{Batches, Runs, events, sink, through_the_sink};
use crate::workload::Workload;

/// Measures and prints.
pub(crate) async fn run(work: Workload) -> Result<()> {
    let server = Nats::start("")?;
    let url = format!("nats://127.0.0.1:{}", server.port());
    let events = events(&work);
    let sink = sink(json!({ "type": "nats", "url": url }))?;
    let mut runs = Runs::default();
    for run in 0..work.runs {
        let [alone, through] = [format!("alone-{run}"), format!("sink-{run}")];
        for stream in [&alone, &through] {
            server.create_stream(stream, Value::Null)?;
        }
        let bare = bare(&url, Batches::new(&events, &work), &work, &alone).await?;
        runs.add(&work, bare, through_the_sink(&sink, &events, &work, &through).await?);
    }
    sink.close().await;
    runs.print("NATS", &work);
    Ok(())
}

/// As much in flight as the sink has, each acknowledgement awaited; keeps no order when a message is refused.
async fn bare(url: &str, batches: Batches, work: &Workload, subject: &str) -> Result<Duration> {
    let window = work.batch as usize;
    batches
        .send(async |batches: Batches| {
            let jetstream = async_nats::jetstream::new(async_nats::connect(url).await?);
            let mut waiting: VecDeque<PublishAckFuture> = VecDeque::new();
            while let Some(batch) = batches.next() {
                for event in batch {
                    if waiting.len() >= window
                        && let Some(first) = waiting.pop_front()
                    {
                        first.await?;
                    }
                    let mut headers = HeaderMap::new();
                    headers.insert("Nats-Msg-Id", event.id.to_string());
                    let body = event.payload.bytes().cloned().unwrap_or_default();
                    waiting
                        .push_back(jetstream.publish_with_headers(subject.to_owned(), headers, body).await?);
                }
            }
            for last in waiting {
                last.await?;
            }
            Ok(())
        })
        .await
}
