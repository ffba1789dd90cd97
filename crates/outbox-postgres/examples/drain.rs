//! Drains a queue as fast as one claimer can: `drain postgres://… [schema] [batch] [delete|keep] [key|none] [claimers]`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_postgres::{PostgresOptions, PostgresStore};
use outbox_store::{Claimed, Ordering, Published, QueuePolicy, Settled, Store, StoreError, Verdict};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), StoreError> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "postgres:///postgres".to_owned());
    let mut options = PostgresOptions::from_url(&url)?;
    options.schema = arguments.next().unwrap_or_else(|| "public".to_owned());
    let store = Arc::new(PostgresStore::connect(options).await?);
    store.migrate().await?;
    let mut policy = QueuePolicy::named("default");
    policy.batch = arguments.next().and_then(|batch| batch.parse().ok()).unwrap_or(500);
    if arguments.next().is_none_or(|published| published == "delete") {
        policy.published = Published::Delete;
    }
    if arguments.next().is_some_and(|ordering| ordering == "none") {
        policy.ordering = Ordering::None;
    }
    let claimers: usize = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(1);
    let policy = Arc::new(policy);
    let begun = Instant::now();
    let tasks: Vec<_> =
        (0..claimers).map(|_| tokio::spawn(drain(Arc::clone(&store), Arc::clone(&policy)))).collect();
    let mut rows = 0;
    for task in tasks {
        rows += task.await.map_err(|error| StoreError::Failed(Box::new(error)))??;
    }
    let took = begun.elapsed().as_secs_f64();
    #[allow(clippy::print_stdout, clippy::cast_precision_loss, reason = "an example's result")]
    {
        println!("{rows} rows in {took:.2} s: {:.0}/s", rows as f64 / took);
    }
    Ok(())
}

async fn drain(store: Arc<PostgresStore>, policy: Arc<QueuePolicy>) -> Result<usize, StoreError> {
    let mut claimer = store.claimer(Arc::clone(&policy));
    let mut rows = 0;
    loop {
        match claimer.claim().await? {
            Claimed::Rows(claim) => {
                rows += claim.events.len();
                let verdicts = vec![Verdict::Published { receipt: None }; claim.events.len()];
                if store.settle(&policy, &claim, &verdicts).await? != Settled::Done {
                    return Err(StoreError::Failed("the lease ran out".into()));
                }
            }
            Claimed::Busy | Claimed::Held => tokio::time::sleep(Duration::from_millis(2)).await,
            Claimed::Empty { .. } | Claimed::Paused => return Ok(rows),
        }
    }
}
