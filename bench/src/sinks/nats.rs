//! A loop around async-nats.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::Result;
use async_nats::HeaderMap;
use async_nats::jetstream::context::PublishAckFuture;

use super::Batches;
use crate::workload::Workload;

/// As much in flight as the sink has, each acknowledgement awaited; keeps no order when a message is refused.
pub(super) async fn bare(url: &str, batches: Batches, work: &Workload, subject: &str) -> Result<Duration> {
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
