//! Lease recovery, dead-lettering, retention and WAL checkpoints.
//!
//! Any number of relays may sweep at once. An error is logged and counted, and the next round tries again: it never
//! ends the relay.

mod report;
mod rounds;

use std::sync::Arc;
use std::time::Duration;

use outbox_store::{QueuePolicy, Store};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use report::SweepReport;

/// How often PROCESSING rows without a claim are looked for, after the look at the start: it reads all unsettled rows.
const ORPHANS_EVERY: Duration = Duration::from_secs(60 * 60);

/// When the sweeper does what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweeperSettings {
    /// Time between two rounds, spread by ± 20 %, so that relays started together do not sweep together.
    pub interval: Duration,
    /// Time between two WAL checkpoints (SQLite); `None` leaves them to others, such as Litestream.
    pub checkpoint: Option<Duration>,
}

impl Default for SweeperSettings {
    fn default() -> Self {
        Self { interval: Duration::from_secs(5), checkpoint: Some(Duration::from_secs(60)) }
    }
}

/// Sweeps the configured queues of one database.
pub struct Sweeper {
    store: Arc<dyn Store>,
    queues: Vec<Arc<QueuePolicy>>,
    settings: SweeperSettings,
    orphans_at: Option<Instant>,
    checkpoint: Checkpoint,
    /// The last round had an error: the first of a run of them is a warning, the others are not.
    failing: bool,
}

/// What is known of the WAL.
#[derive(Debug, Default)]
struct Checkpoint {
    at: Option<Instant>,
    /// The last one that moved all of the WAL.
    complete_at: Option<Instant>,
    /// The store has no WAL.
    none: bool,
}

impl Sweeper {
    /// A sweeper for these queues and no others.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, queues: Vec<Arc<QueuePolicy>>, settings: SweeperSettings) -> Self {
        Self { store, queues, settings, orphans_at: None, checkpoint: Checkpoint::default(), failing: false }
    }

    /// Sweeps at its interval until `shutdown`, first at once; calls `progress` after each round.
    pub async fn run(mut self, shutdown: CancellationToken, progress: impl Fn(&SweepReport) + Send) {
        while !shutdown.is_cancelled() {
            let report = self.round(&shutdown).await;
            progress(&report);
            let pause = self.settings.interval.mul_f64(rand::random_range(0.8..1.2));
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One whole round with the look for orphans and without bounds: everything that is due is done.
    pub async fn sweep_once(&mut self) -> SweepReport {
        let mut total = SweepReport::default();
        self.orphans_at = None;
        loop {
            let report = self.round(&CancellationToken::new()).await;
            let purged = report.purged;
            let failed = !report.errors.is_empty();
            total.add(report);
            if purged == 0 || failed {
                return total;
            }
        }
    }
}
