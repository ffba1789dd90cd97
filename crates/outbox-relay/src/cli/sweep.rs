use outbox_sweeper::{Sweeper, SweeperSettings};

use super::out::{self, Format};
use super::{Failure, database};
use crate::config::Settings;

/// `outbox sweep`
pub(super) async fn sweep(settings: &Settings, format: Format) -> Result<(), Failure> {
    let store = database::migrated(settings).await?;
    let queues: Vec<_> = settings.queues.iter().map(|queue| queue.policy.clone()).collect();
    if queues.is_empty() {
        out::note("warning: no queue is configured, so there is nothing to sweep: see outbox config show");
    }
    let names: Vec<&str> = queues.iter().map(|queue| queue.name.as_str()).collect();
    store.register_queues(&names).await?;
    let sweeper_settings = SweeperSettings {
        interval: settings.sweep_interval,
        checkpoint: database::checkpoint_interval(&settings.store),
    };
    let report = Sweeper::new(store.clone(), queues.clone(), sweeper_settings).sweep_once().await;
    store.close().await;
    match format {
        Format::Json => out::json(&report)?,
        Format::Table => {
            let figures = [
                ("expired claims", report.expired_claims),
                ("recovered", report.recovered),
                ("failed", report.failed),
                ("orphans", report.orphans),
                ("purged", report.purged),
            ];
            let rows: Vec<[String; 2]> =
                figures.iter().map(|(name, count)| [(*name).to_owned(), count.to_string()]).collect();
            out::table(["WHAT", "COUNT"], &rows)?;
        }
    }
    if report.errors.is_empty() {
        return Ok(());
    }
    Err(anyhow::anyhow!("the sweep is incomplete: {}", report.errors.join("; ")).into())
}
