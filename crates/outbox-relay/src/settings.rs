//! What the pipeline is built from: the configuration, parsed and validated.

use std::sync::Arc;
use std::time::Duration;

use outbox_store::QueuePolicy;
use serde::{Deserialize, Serialize};

/// Backoff of a retried row: `initial * factor^retry_count`, at most `max`, spread by ± `jitter`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Backoff {
    /// Delay of the first retry, and of a hold.
    #[serde(with = "humantime_serde")]
    pub initial: Duration,
    /// Growth from one retry to the next; at least 1.
    pub factor: f64,
    /// Longest delay before jitter.
    #[serde(with = "humantime_serde")]
    pub max: Duration,
    /// Share of the delay that is drawn at random, 0 to 1: 0.2 means ± 20 %.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            initial: Duration::from_secs(10),
            factor: 6.0,
            max: Duration::from_secs(4 * 60 * 60),
            jitter: 0.2,
        }
    }
}

/// How an event becomes a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Envelope {
    /// The payload is the body, metadata travels in headers.
    #[default]
    Raw,
    /// CloudEvents 1.0, attributes in headers.
    CloudeventsBinary,
    /// CloudEvents 1.0, one JSON document.
    CloudeventsStructured,
}

/// One queue as the pipeline runs it.
#[derive(Clone, Debug)]
pub struct QueueSettings {
    /// What the store needs to know.
    pub policy: Arc<QueuePolicy>,
    /// Name of the sink under `[sinks]`.
    pub sink: String,
    /// Template of the destination; a row's own destination overrides it.
    pub destination: Option<String>,
    /// How long a batch may take from before its claim to its last answer.
    pub publish_timeout: Duration,
    /// Backoff of retried rows.
    pub retry: Backoff,
}

impl QueueSettings {
    /// Time kept between the publish deadline and the end of the lease for the settle: a tenth of the lease, at most
    /// five seconds.
    #[must_use]
    pub fn settle_margin(&self) -> Duration {
        (self.policy.lease / 10).min(Duration::from_secs(5))
    }
}
