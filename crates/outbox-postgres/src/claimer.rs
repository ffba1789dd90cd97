use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::TryStreamExt;
use outbox_store::{Claim, Claimed, Claimer, Ordering, QueuePolicy, StoreError};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row};
use tokio::time::timeout;

use crate::connections::Connections;
use crate::event::read_event;
use crate::store::{Inner, blocks_when_failed, millis};
use crate::wake_up::Sleeper;
use crate::wire::{self, Seqs, Timestamp, Timestamps, Xids};

/// A scan from the beginning is made this often as a safety net.
const FULL_SCAN_EVERY: Duration = Duration::from_secs(60);

/// At most one part in this many of the time goes into scans from the beginning.
const FULL_SCAN_SHARE: u32 = 100;

/// An idle claimer looks for new rows after this time, and then twice as late each time,
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// until the pauses are this long.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// When the next pause would be this long, it asks to be woken instead.
const SLEEP_FROM: Duration = Duration::from_millis(8);

/// Claims with rows in a row, nothing empty in between, after which producers need not notify any more.
const AWAKE_AFTER: u32 = 3;

/// Where the next scan starts, as the last claim said: two places, and the transactions that may still commit rows
/// before them.
struct Memory {
    from: i64,
    due_from: Timestamp,
    watch: Xids,
    watch_from: Seqs,
    watch_due_from: Timestamps,
    /// About how many rows in flight the next scan meets first.
    held_rows: i64,
}

impl Memory {
    fn empty() -> Self {
        Self {
            from: 0,
            due_from: Timestamp::minus_infinity(),
            watch: Xids::empty(),
            watch_from: Seqs::empty(),
            watch_due_from: Timestamps::empty(),
            held_rows: 0,
        }
    }

    /// What the claim says of its next start; `None` when it leaves the memory as it is (Busy, Paused).
    fn read(outcome: &PgRow) -> Result<Option<Self>, sqlx::Error> {
        let Some(from) = outcome.try_get::<Option<i64>, _>("next_from")? else {
            return Ok(None);
        };
        Ok(Some(Self {
            from,
            due_from: outcome.try_get_unchecked("next_due_from")?,
            watch: outcome.try_get_unchecked("next_watch")?,
            watch_from: outcome.try_get_unchecked("next_watch_from")?,
            watch_due_from: outcome.try_get_unchecked("next_watch_due_from")?,
            held_rows: outcome.try_get::<Option<i64>, _>("held_rows")?.unwrap_or(0),
        }))
    }
}

/// Claims of one queue, and the memory of where its scans start.
pub(crate) struct PostgresClaimer {
    inner: Arc<Inner>,
    policy: Arc<QueuePolicy>,
    memory: Memory,
    full_scan_at: Instant,
    /// How long the next wait takes when nobody wakes it.
    pause: Duration,
    /// Claims with rows since the last empty one.
    busy_claims: u32,
    /// `None` where rows are only found by polling.
    sleeper: Option<Sleeper>,
}

/// An answer to a claim, read but not yet judged.
struct Answer {
    outcome: String,
    memory: Option<Memory>,
    next_due: Option<Duration>,
    missed: i64,
    claim: Option<Claim>,
}

impl PostgresClaimer {
    pub(crate) fn new(inner: Arc<Inner>, policy: Arc<QueuePolicy>) -> Self {
        let sleeper = inner.wake_up.as_ref().map(|wake_up| Sleeper::new(Arc::clone(wake_up), &policy.name));
        Self {
            inner,
            policy,
            memory: Memory::empty(),
            full_scan_at: Instant::now(),
            pause: SHORTEST_PAUSE,
            busy_claims: 0,
            sleeper,
        }
    }

    async fn ask(&self, full: bool) -> Result<Answer, StoreError> {
        let mut taken = self.connections(full).take().await?;
        // Drawn at random: a counter can repeat after a failover.
        let token = i64::try_from(rand::random::<u64>() >> 1).unwrap_or(1);
        let sent_at = Instant::now();
        let query = self.query(token, full);
        let answer = timeout(taken.deadline(), read_answer(query, taken.connection(), token, sent_at)).await;
        taken.answered(answer)
    }

    /// A scan from far back may take long: with the usual timeout it could fail forever.
    fn connections(&self, full: bool) -> &Connections {
        if full || self.memory.from == 0 { &self.inner.slow } else { &self.inner.quick }
    }

    /// How many ready rows to look at first: a batch beyond what is in flight where the scan starts.
    fn window(&self, batch: i32) -> i32 {
        i32::try_from(self.memory.held_rows.saturating_add(batch.into())).unwrap_or(i32::MAX)
    }

    fn query(&self, token: i64, full: bool) -> Query<'_, Postgres, PgArguments> {
        let policy = &self.policy;
        let statements = &self.inner.statements;
        let sql = match policy.ordering {
            Ordering::Key => &statements.claim,
            Ordering::None => &statements.claim_unordered,
        };
        let batch = i32::try_from(policy.batch.max(1)).unwrap_or(i32::MAX / 64).min(i32::MAX / 64);
        let query = sqlx::query(sql.clone())
            .bind(&policy.name)
            .bind(token)
            .bind(&self.inner.relay)
            .bind(millis(policy.lease))
            .bind(batch)
            .bind(i64::try_from(policy.batch_bytes).unwrap_or(i64::MAX))
            .bind(full)
            .bind(self.memory.from)
            .bind(&self.memory.due_from)
            .bind(&self.memory.watch)
            .bind(&self.memory.watch_from)
            .bind(&self.memory.watch_due_from);
        match policy.ordering {
            Ordering::Key => query.bind(blocks_when_failed(policy)).bind(self.window(batch)),
            Ordering::None => query,
        }
    }

    fn judge(&mut self, answer: Answer, full: bool, took: Duration) -> Result<Claimed, StoreError> {
        if answer.memory.is_some() && full {
            self.full_scan_at = Instant::now() + FULL_SCAN_EVERY.max(took * FULL_SCAN_SHARE);
        }
        if let Some(mut memory) = answer.memory {
            // The larger, not the sum: by the next claim the batch before this one is settled as a rule.
            let taken = answer.claim.as_ref().map_or(0, |claim| claim.events.len());
            memory.held_rows = memory.held_rows.max(i64::try_from(taken).unwrap_or(i64::MAX));
            self.memory = memory;
        }
        if answer.missed > 0 {
            let rows = u64::try_from(answer.missed).unwrap_or(0);
            tracing::error!(
                queue = self.policy.name,
                rows,
                "rows below the scan's start: only the safety scan found them"
            );
            metrics::counter!("outbox_scan_misses_total", "queue" => self.policy.name.clone())
                .increment(rows);
        }
        match (answer.outcome.as_str(), answer.claim) {
            ("Rows", Some(claim)) => {
                self.stay_awake();
                Ok(Claimed::Rows(claim))
            }
            ("Empty", _) => {
                self.busy_claims = 0;
                Ok(Claimed::Empty { next_due: answer.next_due })
            }
            ("Busy", _) => Ok(Claimed::Busy),
            ("Held", _) => Ok(Claimed::Held),
            ("Paused", _) => Ok(Claimed::Paused),
            ("Unknown", _) => Err(StoreError::Unfit(format!(
                "queue {:?} is not in outbox_queues; a relay registers its queues when it starts",
                self.policy.name
            ))),
            (other, _) => Err(StoreError::Failed(format!("a claim answered {other:?}").into())),
        }
    }

    /// There is work. When it goes on, notifications would only cost the producers.
    fn stay_awake(&mut self) {
        self.pause = SHORTEST_PAUSE;
        self.busy_claims = self.busy_claims.saturating_add(1);
        if self.busy_claims >= AWAKE_AFTER
            && let Some(sleeper) = &self.sleeper
        {
            sleeper.disarm();
        }
    }
}

#[async_trait]
impl Claimer for PostgresClaimer {
    async fn claim(&mut self) -> Result<Claimed, StoreError> {
        let begun = Instant::now();
        let full = begun >= self.full_scan_at;
        match self.ask(full).await {
            Ok(answer) => self.judge(answer, full, begun.elapsed()),
            Err(error) => {
                // Whatever has happened meanwhile, the next scan will see it.
                self.memory = Memory::empty();
                Err(error)
            }
        }
    }

    async fn wait(&mut self, at_most: Duration) {
        if let Some(sleeper) = &self.sleeper {
            if sleeper.is_armed() {
                return sleeper.sleep(at_most).await;
            }
            // Armed, it returns at once: the claim after this one is the last look before the sleep.
            if self.pause >= SLEEP_FROM && sleeper.arm().await {
                return;
            }
        }
        tokio::time::sleep(self.pause.min(at_most)).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

async fn read_answer(
    query: Query<'_, Postgres, PgArguments>,
    connection: &mut PgConnection,
    token: i64,
    sent_at: Instant,
) -> Result<Answer, sqlx::Error> {
    let mut rows = query.fetch(connection);
    let first = rows.try_next().await?.ok_or(sqlx::Error::RowNotFound)?;
    let mut answer = Answer {
        outcome: first.try_get("outcome")?,
        memory: Memory::read(&first)?,
        next_due: first
            .try_get::<Option<i64>, _>("next_due_us")?
            .map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))),
        missed: first.try_get::<Option<i64>, _>("missed")?.unwrap_or(0),
        claim: None,
    };
    let mut events = Vec::new();
    while let Some(row) = rows.try_next().await? {
        events.push(read_event(&row)?);
    }
    if !events.is_empty() {
        // Sorted here: the server would copy every payload once more.
        events.sort_unstable_by_key(|(priority, event)| (Reverse(*priority), event.seq));
        answer.claim = Some(Claim {
            token,
            events: events.into_iter().map(|(_, event)| event).collect(),
            claimed_at: wire::time_at(&first, "made_at")?,
            sent_at,
        });
    }
    Ok(answer)
}
