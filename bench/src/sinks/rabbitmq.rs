//! A loop around lapin: persistent, mandatory, confirmed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};
use outbox_store::Event;

use super::IN_FLIGHT;
use crate::workload::Workload;

/// As much in flight as the sink has, each confirm awaited; keeps no order when one is refused.
pub(super) async fn bare(url: &str, events: &[Event], work: &Workload, queue: &str) -> Result<Duration> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let began = Instant::now();
    let mut waiting = VecDeque::new();
    for event in events {
        if waiting.len() >= work.batch as usize * IN_FLIGHT {
            confirmed(waiting.pop_front()).await?;
        }
        let body = event.payload.bytes().cloned().unwrap_or_default();
        let properties =
            BasicProperties::default().with_delivery_mode(2).with_message_id(event.id.to_string().into());
        waiting.push_back(channel.basic_publish("".into(), queue.into(), options, &body, properties).await?);
    }
    while let Some(next) = waiting.pop_front() {
        confirmed(Some(next)).await?;
    }
    Ok(began.elapsed())
}

async fn confirmed(confirm: Option<lapin::PublisherConfirm>) -> Result<()> {
    if let Some(confirm) = confirm {
        ensure!(matches!(confirm.await?, Confirmation::Ack(None)), "not everything was confirmed");
    }
    Ok(())
}
