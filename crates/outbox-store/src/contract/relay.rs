use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::Harness;
use crate::{Claim, Claimed, Claimer, Event, QueuePolicy, Settled, Store, StoreError, Swept, Verdict};

/// Longest time that a claim may keep answering "again, in milliseconds".
const PATIENCE: Duration = Duration::from_secs(30);

/// A relay of one queue, moved step by step.
pub struct Relay {
    /// Its own store.
    pub store: Arc<dyn Store>,
    /// Its queue's policy.
    pub policy: Arc<QueuePolicy>,
    /// Never locked: the mutex makes a relay `Sync`, which a claimer need not be.
    claimer: Mutex<Box<dyn Claimer>>,
}

/// The verdict of a row that was acknowledged.
#[must_use]
pub fn published() -> Verdict {
    Verdict::Published { receipt: Some("place/1".to_owned()) }
}

/// The verdict of a row that is tried again in an hour, which for a case means: when it makes it due.
#[must_use]
pub fn retry() -> Verdict {
    Verdict::Retry { after: Duration::from_secs(3600), error: "nack".to_owned() }
}

/// The verdict of a row that was not sent.
#[must_use]
pub fn release() -> Verdict {
    Verdict::Release
}

/// The labels of a claim's rows, in its order.
#[must_use]
pub fn labels(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.event_type.as_deref().unwrap_or("")).collect()
}

impl Relay {
    /// A relay of the queue `default` with a small batch.
    pub async fn new(h: &dyn Harness, batch: u32) -> Self {
        Self::with(h, |policy| policy.batch = batch).await
    }

    /// A relay whose policy differs from the defaults.
    pub async fn with(h: &dyn Harness, change: impl FnOnce(&mut QueuePolicy)) -> Self {
        let mut policy = QueuePolicy::named("default");
        change(&mut policy);
        let policy = Arc::new(policy);
        let store = h.store().await;
        store.register_queues(&[&policy.name]).await.expect("register");
        Self::on(store, policy)
    }

    /// A relay on a store that is already there.
    #[must_use]
    pub fn on(store: Arc<dyn Store>, policy: Arc<QueuePolicy>) -> Self {
        let claimer = Mutex::new(store.claimer(Arc::clone(&policy)));
        Self { store, policy, claimer }
    }

    /// Loses its memory and whatever it holds, as a crash does.
    pub fn crash(&mut self) {
        self.claimer = Mutex::new(self.store.claimer(Arc::clone(&self.policy)));
    }

    /// One claim, as it comes.
    ///
    /// # Errors
    /// The store's.
    pub async fn try_claim(&mut self) -> Result<Claimed, StoreError> {
        self.claimer.get_mut().expect("never locked").claim().await
    }

    /// Claims until the answer is not `Busy`.
    pub async fn claim(&mut self) -> Claimed {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.try_claim().await {
                Ok(Claimed::Busy) | Err(StoreError::Conflict(_)) => {
                    assert!(Instant::now() < end, "busy for {PATIENCE:?}");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                Ok(other) => return other,
                Err(error) => panic!("claim: {error}"),
            }
        }
    }

    /// Claims, and expects rows.
    pub async fn rows(&mut self) -> Claim {
        match self.claim().await {
            Claimed::Rows(claim) => {
                assert!(!claim.events.is_empty(), "a claim without rows");
                assert!(claim.events.len() <= self.policy.batch as usize, "more rows than the batch allows");
                claim
            }
            other => panic!("expected rows, got {other:?}"),
        }
    }

    /// Claims, and expects exactly these rows in this order.
    pub async fn expect(&mut self, expected: &[&str]) -> Claim {
        let claim = self.rows().await;
        assert_eq!(labels(&claim.events), expected);
        claim
    }

    /// Claims, and expects that there is nothing to claim now.
    pub async fn expect_nothing(&mut self) -> Claimed {
        match self.claim().await {
            Claimed::Rows(claim) => panic!("expected nothing, got {:?}", labels(&claim.events)),
            other => other,
        }
    }

    /// Claims, and expects that everything left waits for what is in flight.
    pub async fn expect_held(&mut self) {
        let claimed = self.expect_nothing().await;
        assert!(matches!(claimed, Claimed::Held), "expected Held, got {claimed:?}");
    }

    /// Claims, and expects that nothing is there; returns when the next row is due.
    pub async fn expect_empty(&mut self) -> Option<Duration> {
        match self.expect_nothing().await {
            Claimed::Empty { next_due } => next_due,
            other => panic!("expected Empty, got {other:?}"),
        }
    }

    /// Claims, and expects nothing although a row is in flight that this relay's scans may not have met.
    pub async fn expect_held_or_empty(&mut self) {
        let claimed = self.expect_nothing().await;
        assert!(
            matches!(claimed, Claimed::Held | Claimed::Empty { .. }),
            "expected nothing, got {claimed:?}"
        );
    }

    /// Settles, and expects that the claim was still there.
    pub async fn settle(&self, claim: &Claim, verdicts: &[Verdict]) {
        assert_eq!(self.try_settle(claim, verdicts).await, Settled::Done);
    }

    /// Settles; conflicts are tried again as the trait says.
    pub async fn try_settle(&self, claim: &Claim, verdicts: &[Verdict]) -> Settled {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.store.settle(&self.policy, claim, verdicts).await {
                Ok(settled) => return settled,
                Err(StoreError::Conflict(_)) if Instant::now() < end => {}
                Err(error) => panic!("settle: {error}"),
            }
        }
    }

    /// Settles every row of the claim alike.
    pub async fn settle_all(&self, claim: &Claim, verdict: Verdict) {
        self.settle(claim, &vec![verdict; claim.events.len()]).await;
    }

    /// Delivers every row of the claim.
    pub async fn publish(&self, claim: &Claim) {
        self.settle_all(claim, published()).await;
    }

    /// Claims and delivers until nothing is left to claim; returns the labels in the order of delivery.
    pub async fn drain(&mut self) -> Vec<String> {
        let mut delivered = Vec::new();
        while let Claimed::Rows(claim) = self.claim().await {
            delivered.extend(labels(&claim.events).into_iter().map(str::to_owned));
            self.publish(&claim).await;
        }
        delivered
    }

    /// Takes all expired claims apart.
    pub async fn sweep(&self) -> Vec<Swept> {
        let mut swept = Vec::new();
        while let Some(one) = self.store.sweep(&self.policy).await.expect("sweep") {
            swept.push(one);
        }
        swept
    }
}
