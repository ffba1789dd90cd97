//! `type = "kafka"`
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Sink;

/// Options of the kafka sink.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {}

impl Config {
    /// Makes the sink.
    ///
    /// # Errors
    /// Always.
    pub fn build(&self, name: &str) -> Result<Arc<dyn Sink>, String> {
        Err(format!("sinks.{name}: not there yet"))
    }
}
