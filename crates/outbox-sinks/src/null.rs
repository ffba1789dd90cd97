//! `type = "null"`: acknowledges everything. For benchmarks and dry runs.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{Answer, Message, Sink};

/// Options of the null sink: none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {}

impl Config {
    /// Makes the sink.
    ///
    /// # Errors
    /// None.
    pub fn build(&self, _name: &str) -> Result<Arc<dyn Sink>, String> {
        Ok(Arc::new(Null))
    }
}

/// Acknowledges everything and keeps nothing.
#[derive(Debug)]
pub struct Null;

#[async_trait]
impl Sink for Null {
    fn kind(&self) -> &'static str {
        "null"
    }

    fn needs_destination(&self) -> bool {
        false
    }

    async fn publish(&self, batch: &[Message<'_>], deadline: Instant) -> Vec<Answer> {
        if Instant::now() >= deadline {
            return vec![Answer::Unsent; batch.len()];
        }
        vec![Answer::Acked { receipt: None }; batch.len()]
    }

    async fn check(&self, _deadline: Instant) -> Result<String, String> {
        Ok("acknowledges everything and keeps nothing".to_owned())
    }

    async fn close(&self) {}
}
