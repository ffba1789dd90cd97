//! A consumer group on a Redis stream. After a crash a consumer reads first what it had been given and did not
//! acknowledge.

use std::collections::VecDeque;

use anyhow::{Context, Result};
use async_trait::async_trait;
use processed_events::EventMeta;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamId, StreamReadOptions};
use redis::{AsyncConnectionConfig, AsyncTypedCommands, Client, Value};

use super::{AHEAD, Source, Subscription};
use crate::event::Event;

/// The consumer's name in its group. One that comes back under its name finds what it left.
const MEMBER: &str = "1";

/// Milliseconds that a read waits for an entry.
const BLOCK_MS: usize = 1000;

pub(super) struct Group {
    connection: MultiplexedConnection,
    subscription: Subscription,
    entries: VecDeque<StreamId>,
    /// What was left unacknowledged may not all have been read yet: it is, after this entry.
    left: Option<String>,
    unacknowledged: Option<String>,
}

impl Group {
    pub(super) async fn join(url: &str, subscription: &Subscription) -> Result<Self> {
        let client = Client::open(url).context("--from is no address of Redis")?;
        // A read that blocks takes longer than the client's half second.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let Subscription { topic, group } = subscription;
        match connection.xgroup_create_mkstream(topic, group, "0").await {
            Err(error) if error.code() == Some("BUSYGROUP") => {}
            created => created?,
        }
        let (entries, left) = (VecDeque::new(), Some("0".to_owned()));
        Ok(Self { connection, subscription: subscription.clone(), entries, left, unacknowledged: None })
    }

    /// Reads more entries, if there are any.
    async fn read(&mut self) -> Result<()> {
        let Subscription { topic, group } = &self.subscription;
        let options = StreamReadOptions::default().group(group, MEMBER).count(AHEAD.into()).block(BLOCK_MS);
        let after = self.left.as_deref().unwrap_or(">");
        let reply = self.connection.xread_options(&[topic], &[after], &options).await?;
        self.entries.extend(reply.into_iter().flat_map(|reply| reply.keys).flat_map(|stream| stream.ids));
        if self.left.is_some() {
            self.left = self.entries.back().map(|last| last.id.clone());
        }
        Ok(())
    }
}

#[async_trait]
impl Source for Group {
    async fn next(&mut self) -> Result<Event> {
        let entry = loop {
            match self.entries.pop_front() {
                Some(entry) => break entry,
                None => self.read().await?,
            }
        };
        let fields = entry.map.iter().filter_map(|(name, value)| match value {
            Value::BulkString(bytes) => Some((name.as_str(), bytes.as_slice())),
            _ => None,
        });
        let meta = EventMeta::from_redis(fields)?;
        let payload = match entry.map.get("payload") {
            Some(Value::BulkString(payload)) => payload.clone(),
            _ => Vec::new(),
        };
        self.unacknowledged = Some(entry.id);
        Ok(Event { meta, payload })
    }

    async fn acknowledge(&mut self) -> Result<()> {
        if let Some(id) = self.unacknowledged.take() {
            let Subscription { topic, group } = &self.subscription;
            self.connection.xack(topic, group, &[id]).await?;
        }
        Ok(())
    }
}
