//! The file sink's lines. Nothing remembers how far they were read: a consumer begins at the first line, and what it has
//! processed before are duplicates.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::fs::File;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::sleep;

use super::Source;
use crate::event::Event;

/// Time between two looks for more.
const POLL: Duration = Duration::from_millis(20);

pub(super) struct Lines {
    path: PathBuf,
    file: Option<BufReader<File>>,
    /// What has been read of the next line.
    line: Vec<u8>,
}

impl Lines {
    pub(super) fn of(path: PathBuf) -> Self {
        Self { path, file: None, line: Vec::new() }
    }
}

#[async_trait]
impl Source for Lines {
    async fn next(&mut self) -> Result<Event> {
        let file = match &mut self.file {
            Some(file) => file,
            missing => missing.insert(BufReader::new(wait_for(&self.path).await?)),
        };
        loop {
            file.read_until(b'\n', &mut self.line).await?;
            if self.line.last() != Some(&b'\n') {
                sleep(POLL).await;
                continue;
            }
            let line = std::mem::take(&mut self.line);
            match event(&line) {
                Ok(event) => return Ok(event),
                // A relay was killed while it wrote. It has not counted as delivered, so it is delivered again.
                Err(error) => tracing::warn!(%error, "skipping a line that is not whole"),
            }
        }
    }

    async fn acknowledge(&mut self) -> Result<()> {
        Ok(())
    }
}

async fn wait_for(path: &std::path::Path) -> Result<File> {
    loop {
        match File::open(path).await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => sleep(POLL).await,
            opened => return opened.with_context(|| format!("cannot read {}", path.display())),
        }
    }
}

#[derive(Deserialize)]
struct Line<'l> {
    id: String,
    event_type: Option<String>,
    aggregate_id: String,
    #[serde(borrow)]
    payload: &'l RawValue,
}

fn event(line: &[u8]) -> serde_json::Result<Event> {
    let line: Line<'_> = serde_json::from_slice(line)?;
    Ok(Event {
        id: line.id,
        event_type: line.event_type.unwrap_or_default(),
        aggregate_id: line.aggregate_id,
        payload: line.payload.get().as_bytes().to_vec(),
    })
}
