use std::collections::HashMap;

use outbox_store::{Claim, Ordering, Published, QueuePolicy, RowRef, Settled, StoreError, Verdict};
use sqlx::Row;
use tokio::time::timeout;
use uuid::Uuid;

use crate::store::{Inner, blocks_when_failed, millis};
use crate::wire::Tid;

/// Times a settle looks for rows that have moved before it leaves the claim to its lease.
const ATTEMPTS: u32 = 4;

/// Longest `last_error` and receipt kept, in bytes.
const TEXT_LIMIT: usize = 4096;

/// Longest delay, about ten years: beyond it timestamps could overflow.
const DELAY_LIMIT_MS: i64 = 10 * 365 * 24 * 60 * 60 * 1000;

/// The verdicts of a claim, sorted into what `outbox_settle_v1` takes.
#[derive(Default)]
struct Sorted {
    published: Vec<Tid>,
    receipts: Vec<Option<String>>,
    released: Vec<Tid>,
    bad: Vec<Tid>,
    kinds: Vec<&'static str>,
    delays_ms: Vec<i64>,
    errors: Vec<String>,
    gone: i32,
}

impl Sorted {
    /// `place` says where an event's row is now; `None` when it exists no more.
    fn new(claim: &Claim, verdicts: &[Verdict], place: impl Fn(Uuid, RowRef) -> Option<RowRef>) -> Self {
        let mut sorted = Self::default();
        for (event, verdict) in claim.events.iter().zip(verdicts) {
            let Some(row) = place(event.id, event.row).map(Tid) else {
                sorted.gone += 1;
                continue;
            };
            match verdict {
                Verdict::Published { receipt } => {
                    sorted.published.push(row);
                    sorted.receipts.push(receipt.as_deref().map(storable));
                }
                Verdict::Release => sorted.released.push(row),
                Verdict::Retry { after, error } => sorted.bad(row, "R", millis(*after), error),
                Verdict::Hold { after, error } => sorted.bad(row, "H", millis(*after), error),
                Verdict::Failed { error } => sorted.bad(row, "F", 0, error),
            }
        }
        sorted
    }

    fn bad(&mut self, row: Tid, kind: &'static str, delay_ms: i64, error: &str) {
        self.bad.push(row);
        self.kinds.push(kind);
        self.delays_ms.push(delay_ms.min(DELAY_LIMIT_MS));
        self.errors.push(storable(error));
    }
}

/// PostgreSQL's text takes no NUL, and an error message may be of any length.
fn storable(text: &str) -> String {
    let mut end = text.len().min(TEXT_LIMIT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].replace('\0', "\u{fffd}")
}

impl Inner {
    /// By ctid. When somebody else has touched a row of the claim meanwhile, it has moved: then it is looked up by id.
    pub(crate) async fn settle(
        &self,
        policy: &QueuePolicy,
        claim: &Claim,
        verdicts: &[Verdict],
    ) -> Result<Settled, StoreError> {
        if verdicts.len() != claim.events.len() {
            let text = format!("{} verdicts for {} rows", verdicts.len(), claim.events.len());
            return Err(StoreError::Failed(text.into()));
        }
        let mut sorted = Sorted::new(claim, verdicts, |_, row| Some(row));
        for attempt in 1.. {
            match self.settle_sorted(policy, claim, &sorted).await {
                Err(StoreError::Conflict(cause)) if attempt < ATTEMPTS => {
                    tracing::debug!(queue = policy.name, attempt, %cause, "rows of a claim have moved");
                    let places = self.relocate(claim).await?;
                    sorted = Sorted::new(claim, verdicts, |id, _| places.get(&id).copied());
                }
                settled => return settled,
            }
        }
        unreachable!("the last attempt returns")
    }

    async fn settle_sorted(
        &self,
        policy: &QueuePolicy,
        claim: &Claim,
        sorted: &Sorted,
    ) -> Result<Settled, StoreError> {
        let keep = policy.published == Published::Keep;
        let no_receipts = Vec::new();
        let mut taken = self.quick.take().await?;
        let query = sqlx::query_scalar(self.statements.settle.clone())
            .bind(&policy.name)
            .bind(claim.token)
            .bind(policy.ordering == Ordering::Key)
            .bind(keep)
            .bind(blocks_when_failed(policy))
            .bind(claim.events.iter().any(|event| event.is_hold))
            .bind(sorted.gone)
            .bind(&sorted.published)
            .bind(if keep { &sorted.receipts } else { &no_receipts })
            .bind(&sorted.released)
            .bind(&sorted.bad)
            .bind(&sorted.kinds)
            .bind(&sorted.delays_ms)
            .bind(&sorted.errors);
        let answer = timeout(taken.deadline(), query.fetch_one(taken.connection())).await;
        let settled: i32 = taken.answered(answer)?;
        Ok(if settled < 0 { Settled::LeaseLost } else { Settled::Done })
    }

    /// Where the claim's rows are now.
    async fn relocate(&self, claim: &Claim) -> Result<HashMap<Uuid, RowRef>, StoreError> {
        let ids: Vec<Uuid> = claim.events.iter().map(|event| event.id).collect();
        let mut taken = self.quick.take().await?;
        let query = sqlx::query(self.statements.relocate.clone()).bind(ids).bind(claim.token);
        let read = async {
            let rows = query.fetch_all(taken.connection()).await?;
            rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get_unchecked::<Tid, _>(1)?.0))).collect()
        };
        let deadline = self.quick.deadline();
        let answer = timeout(deadline, read).await;
        taken.answered(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_made_storable() {
        assert_eq!(storable("a\0b"), "a\u{fffd}b");
        let long = "ä".repeat(TEXT_LIMIT);
        assert_eq!(storable(&long).len(), TEXT_LIMIT);
        assert_eq!(storable(&format!("x{long}")).len(), TEXT_LIMIT - 1);
    }
}
