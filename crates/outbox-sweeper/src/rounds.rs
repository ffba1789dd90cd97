//! One round: expired claims, orphans, retention, checkpoint.

use metrics::{counter, gauge};
use outbox_store::{QueuePolicy, StoreError, Swept, WalCheckpoint};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{ORPHANS_EVERY, SweepReport, Sweeper};

/// Rows deleted in one transaction: small, so that nobody waits long for its locks.
const PURGE_BATCH: u32 = 1000;

/// Purges of one queue in one round, so that retention does not keep expired claims waiting.
const PURGES_A_ROUND: u32 = 20;

/// Tries to sweep a queue in one round while others change the same rows.
const TRIES: u32 = 3;

impl Sweeper {
    /// Does what is due. An error ends the work on its queue, not the round.
    pub(crate) async fn round(&mut self, stop: &CancellationToken) -> SweepReport {
        let mut report = SweepReport::default();
        let orphans = self.orphans_at.is_none_or(|at| at <= Instant::now());
        for policy in &self.queues {
            if let Err(error) = self.sweep_patiently(policy, orphans, stop, &mut report).await {
                self.note(&policy.name, &error, &mut report);
            }
        }
        if orphans && report.errors.is_empty() {
            self.orphans_at = Some(Instant::now() + ORPHANS_EVERY);
        }
        if !stop.is_cancelled()
            && let Err(error) = self.checkpoint().await
        {
            self.note("", &error, &mut report);
        }
        if self.failing && report.errors.is_empty() {
            info!("sweeping works again");
        }
        self.failing = !report.errors.is_empty();
        report
    }

    /// Another relay that sweeps the same rows is no failure: what it left is there at the next try.
    async fn sweep_patiently(
        &self,
        policy: &QueuePolicy,
        orphans: bool,
        stop: &CancellationToken,
        report: &mut SweepReport,
    ) -> Result<(), StoreError> {
        for _ in 1..TRIES {
            match self.sweep_queue(policy, orphans, stop, report).await {
                Err(StoreError::Conflict(error)) => {
                    debug!(queue = policy.name, %error, "the sweep met a concurrent change and tries again");
                }
                done => return done,
            }
        }
        self.sweep_queue(policy, orphans, stop, report).await
    }

    async fn sweep_queue(
        &self,
        policy: &QueuePolicy,
        orphans: bool,
        stop: &CancellationToken,
        report: &mut SweepReport,
    ) -> Result<(), StoreError> {
        while !stop.is_cancelled()
            && let Some(swept) = self.store.sweep(policy).await?
        {
            log_swept(policy, &swept);
            report.expired_claims += 1;
            report.recovered += swept.recovered;
            report.failed += u64::from(swept.failed.is_some());
        }
        if orphans {
            let recovered = self.store.recover_orphans(policy).await?;
            report.orphans += recovered;
            if recovered > 0 {
                warn!(
                    queue = policy.name,
                    rows = recovered,
                    "rows were PROCESSING without a claim and are PENDING again"
                );
            }
        }
        self.purge(policy, stop, report).await
    }

    async fn purge(
        &self,
        policy: &QueuePolicy,
        stop: &CancellationToken,
        report: &mut SweepReport,
    ) -> Result<(), StoreError> {
        for _ in 0..PURGES_A_ROUND {
            if stop.is_cancelled() {
                return Ok(());
            }
            let purged = self.store.purge(policy, PURGE_BATCH).await?;
            report.purged += purged;
            if purged < u64::from(PURGE_BATCH) {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn checkpoint(&mut self) -> Result<(), StoreError> {
        let Some(interval) = self.settings.checkpoint.filter(|_| !self.checkpoint.none) else {
            return Ok(());
        };
        let now = Instant::now();
        let since = *self.checkpoint.complete_at.get_or_insert(now);
        if self.checkpoint.at.is_none_or(|at| now.duration_since(at) >= interval) {
            let Some(done) = self.store.checkpoint().await? else {
                self.checkpoint.none = true;
                return Ok(());
            };
            self.checkpoint.at = Some(now);
            self.record_checkpoint(done);
        }
        let age = now.duration_since(self.checkpoint.complete_at.unwrap_or(since));
        gauge!("outbox_wal_checkpoint_age_seconds").set(age.as_secs_f64());
        Ok(())
    }

    fn record_checkpoint(&mut self, done: WalCheckpoint) {
        #[allow(clippy::cast_precision_loss, reason = "a gauge is a float")]
        gauge!("outbox_wal_bytes").set(done.wal_bytes as f64);
        if done.checkpointed_frames >= done.wal_frames {
            self.checkpoint.complete_at = self.checkpoint.at;
        } else {
            debug!(
                done.wal_frames,
                done.checkpointed_frames, "a reader keeps part of the WAL from being moved"
            );
        }
    }

    fn note(&self, queue: &str, error: &StoreError, report: &mut SweepReport) {
        counter!("outbox_sweep_errors_total").increment(1);
        if self.failing || !report.errors.is_empty() {
            debug!(queue, %error, "sweeping still fails");
        } else {
            warn!(queue, %error, "sweeping failed; it is tried again at every interval");
        }
        report.errors.push(format!("{queue}: {error}"));
    }
}

fn log_swept(policy: &QueuePolicy, swept: &Swept) {
    let queue = policy.name.as_str();
    counter!("outbox_claims_expired_total", "queue" => queue.to_owned()).increment(1);
    if swept.recovered > 0 {
        warn!(
            queue,
            relay = swept.relay,
            rows = swept.recovered,
            event_types = swept.event_types.join(", "),
            attempts = swept.most_lost,
            "a claim's lease ran out; its rows are PENDING again"
        );
    }
    if let Some(failed) = &swept.failed {
        warn!(
            queue,
            relay = swept.relay,
            id = %failed.id,
            event_type = failed.event_type.as_deref().unwrap_or_default(),
            attempts = failed.lost_count,
            error = outbox_store::MAX_RETRIES_EXCEEDED,
            "an event FAILED: every claim that held it was lost"
        );
    }
}
