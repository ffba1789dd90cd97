//! The file sink's lines. Nothing remembers how far they were read: a consumer begins at the first line, and what it has
//! processed before are duplicates.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use processed_events::EventMeta;
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
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "skipping a line that is not whole");
                }
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
    #[serde(borrow)]
    payload: Option<&'l RawValue>,
}

fn event(line: &[u8]) -> Result<Event> {
    let meta = EventMeta::from_line(line)?;
    let line: Line<'_> = serde_json::from_slice(line)?;
    let payload = line.payload.map(|json| json.get().as_bytes().to_vec()).unwrap_or_default();
    Ok(Event { meta, payload })
}
