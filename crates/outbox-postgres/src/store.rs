use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_store::{
    Claim, Claimer, DISCARDED, FailedEvent, MAX_RETRIES_EXCEEDED, OnFailed, Ordering, QueuePolicy,
    QueueStats, SchemaState, Selection, Settled, Store, StoreError, Swept, SweptRow, Verdict, WalCheckpoint,
};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Connection, Postgres, Row, SqlStr};
use tokio::time::timeout;
use uuid::Uuid;

use crate::claimer::PostgresClaimer;
use crate::connections::Connections;
use crate::migrations;
use crate::options::PostgresOptions;
use crate::sql::{Schema, Statements};
use crate::wake_up::WakeUp;
use crate::wire::time_at;

/// Long work gets this many times the usual timeout.
const SLOW_FACTOR: u32 = 10;

/// Connections for long work, besides the usual ones.
const SLOW_CONNECTIONS: u32 = 2;

/// Statistics count up to this many rows of each kind in a queue: with 200,000 rows to look at they took seconds.
const COUNT_LIMIT: i64 = 10_000;

/// The outbox on PostgreSQL 13 or newer.
///
/// Counts in [`Store::stats`] stop at 10,000 of each kind; the ready rows beyond them are estimated from the seqs.
pub struct PostgresStore {
    inner: Arc<Inner>,
}

/// What the store and its claimers share.
pub(crate) struct Inner {
    pub(crate) statements: Statements,
    pub(crate) relay: String,
    /// For claims, settles and other short work.
    pub(crate) quick: Connections,
    /// For scans from far back, statistics, operators.
    pub(crate) slow: Connections,
    /// `None` where session locks and notifications cannot be used.
    pub(crate) wake_up: Option<Arc<WakeUp>>,
    schema: Schema,
}

impl PostgresStore {
    /// Opens a first connection, to learn whether the server is there and usable. The tables may still be missing.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the server cannot be reached or refuses, [`StoreError::Unfit`] when it is too old,
    /// has another default isolation than READ COMMITTED, or the schema's name cannot be used.
    pub async fn connect(options: PostgresOptions) -> Result<Self, StoreError> {
        let store = Self::new(options)?;
        store.ping().await?;
        Ok(store)
    }

    /// Opens no connection yet: for a relay that shows how it is doing while it waits for its database.
    ///
    /// # Errors
    /// [`StoreError::Unfit`] when the schema's name cannot be used.
    pub fn new(options: PostgresOptions) -> Result<Self, StoreError> {
        let schema = Schema::new(&options.schema)?;
        let usual = options.statement_timeout;
        let long = usual * SLOW_FACTOR;
        let statements = Statements::new(&schema);
        let wake_up = (options.wake_up && !options.behind_pooler).then(|| {
            let (lock, unlock) = (statements.wake_up_lock.clone(), statements.wake_up_unlock.clone());
            Arc::new(WakeUp::new(options.session(usual), lock, unlock))
        });
        let inner = Inner {
            statements,
            wake_up,
            quick: Connections::new(options.session(usual), options.max_connections, usual),
            slow: Connections::new(options.session(long), SLOW_CONNECTIONS, long).probed(),
            relay: options.relay,
            schema,
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

impl Inner {
    fn query(&self, sql: &SqlStr) -> Query<'static, Postgres, PgArguments> {
        sqlx::query(sql.clone())
    }

    async fn rows(
        &self,
        connections: &Connections,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, StoreError> {
        let mut taken = connections.take().await?;
        let answer = timeout(taken.deadline(), query.fetch_all(taken.connection())).await;
        taken.answered(answer)
    }

    /// The one number that a function returns.
    async fn count(
        &self,
        connections: &Connections,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<u64, StoreError> {
        let rows = self.rows(connections, query).await?;
        let count: i64 =
            rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(crate::error::store_error)?;
        Ok(u64::try_from(count).unwrap_or(0))
    }
}

/// Whole milliseconds, saturating.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 1_000_000).min(i64::MAX / 1_000_000)
}

/// Whether a FAILED row of this queue holds its key.
pub(crate) fn blocks_when_failed(policy: &QueuePolicy) -> bool {
    policy.ordering == Ordering::Key && policy.on_failed == OnFailed::Block
}

fn read<T>(rows: &[PgRow], one: impl Fn(&PgRow) -> Result<T, sqlx::Error>) -> Result<Vec<T>, StoreError> {
    rows.iter().map(one).collect::<Result<_, _>>().map_err(crate::error::store_error)
}

/// The two arguments by which the functions for FAILED rows select.
fn selected(selection: &Selection) -> (Option<&[Uuid]>, Option<&str>) {
    match selection {
        Selection::Ids(ids) => (Some(ids), None),
        Selection::Queue(queue) => (None, Some(queue)),
        Selection::All => (None, None),
    }
}

#[async_trait]
impl Store for PostgresStore {
    async fn schema_state(&self) -> Result<SchemaState, StoreError> {
        let inner = &self.inner;
        let mut taken = inner.quick.take().await?;
        let state = migrations::state(taken.connection(), &inner.schema, &inner.statements);
        let answer = timeout(inner.quick.deadline(), state).await;
        taken.answered(answer)
    }

    async fn migrate(&self) -> Result<Vec<i64>, StoreError> {
        let inner = &self.inner;
        let mut taken = inner.slow.take().await?;
        let migrate = migrations::migrate(taken.connection(), &inner.schema, &inner.statements);
        let answer = timeout(inner.slow.deadline(), migrate).await;
        taken.answered(answer)
    }

    async fn register_queues(&self, queues: &[&str]) -> Result<(), StoreError> {
        let inner = &self.inner;
        inner
            .rows(&inner.quick, inner.query(&inner.statements.register_queues).bind(queues))
            .await
            .map(|_| ())
    }

    fn claimer(&self, policy: Arc<QueuePolicy>) -> Box<dyn Claimer> {
        Box::new(PostgresClaimer::new(Arc::clone(&self.inner), policy))
    }

    async fn settle(
        &self,
        policy: &QueuePolicy,
        claim: &Claim,
        verdicts: &[Verdict],
    ) -> Result<Settled, StoreError> {
        self.inner.settle(policy, claim, verdicts).await
    }

    async fn sweep(&self, policy: &QueuePolicy) -> Result<Option<Swept>, StoreError> {
        let inner = &self.inner;
        let query = inner
            .query(&inner.statements.sweep)
            .bind(&policy.name)
            .bind(blocks_when_failed(policy))
            .bind(i32::try_from(policy.max_retries).unwrap_or(i32::MAX))
            .bind(MAX_RETRIES_EXCEEDED);
        let rows = inner.rows(&inner.slow, query).await?;
        Ok(read(&rows, read_swept)?.pop())
    }

    async fn recover_orphans(&self, policy: &QueuePolicy) -> Result<u64, StoreError> {
        let inner = &self.inner;
        let query =
            inner.query(&inner.statements.recover_orphans).bind(&policy.name).bind(millis(policy.lease));
        inner.count(&inner.slow, query).await
    }

    async fn purge(&self, policy: &QueuePolicy, limit: u32) -> Result<u64, StoreError> {
        let inner = &self.inner;
        let query = inner
            .query(&inner.statements.purge)
            .bind(&policy.name)
            .bind(millis(policy.keep_for))
            .bind(policy.failed_keep_for.map(millis))
            .bind(i32::try_from(limit).unwrap_or(i32::MAX));
        inner.count(&inner.slow, query).await
    }

    async fn checkpoint(&self) -> Result<Option<WalCheckpoint>, StoreError> {
        Ok(None)
    }

    async fn stats(&self) -> Result<Vec<QueueStats>, StoreError> {
        let inner = &self.inner;
        let rows = inner.rows(&inner.slow, inner.query(&inner.statements.stats).bind(COUNT_LIMIT)).await?;
        read(&rows, read_stats)
    }

    async fn set_paused(&self, queue: &str, paused: bool) -> Result<(), StoreError> {
        let inner = &self.inner;
        let query = inner.query(&inner.statements.set_paused).bind(queue).bind(paused);
        inner.rows(&inner.slow, query).await.map(|_| ())
    }

    async fn failed(&self, selection: &Selection, limit: u32) -> Result<Vec<FailedEvent>, StoreError> {
        let inner = &self.inner;
        let (ids, queue) = selected(selection);
        let query = inner.query(&inner.statements.failed).bind(ids).bind(queue).bind(i64::from(limit));
        read(&inner.rows(&inner.slow, query).await?, read_failed)
    }

    async fn retry_failed(&self, selection: &Selection) -> Result<u64, StoreError> {
        let inner = &self.inner;
        let (ids, queue) = selected(selection);
        inner.count(&inner.slow, inner.query(&inner.statements.retry_failed).bind(ids).bind(queue)).await
    }

    async fn discard_failed(&self, selection: &Selection) -> Result<u64, StoreError> {
        let inner = &self.inner;
        let (ids, queue) = selected(selection);
        let query = inner.query(&inner.statements.discard_failed).bind(ids).bind(queue).bind(DISCARDED);
        inner.count(&inner.slow, query).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        let mut taken = self.inner.quick.take().await?;
        let answer = timeout(self.inner.quick.deadline(), taken.connection().ping()).await;
        taken.answered(answer)
    }

    async fn close(&self) {
        self.inner.quick.close().await;
        self.inner.slow.close().await;
    }
}

fn read_swept(row: &PgRow) -> Result<Swept, sqlx::Error> {
    let failed = match row.try_get::<Option<Uuid>, _>("failed_id")? {
        Some(id) => Some(SweptRow {
            id,
            event_type: row.try_get("failed_event_type")?,
            lost_count: count(row, "failed_lost_count")?,
        }),
        None => None,
    };
    Ok(Swept {
        token: row.try_get("swept_token")?,
        relay: row.try_get("swept_relay")?,
        recovered: big_count(row, "recovered")?,
        event_types: row.try_get("event_types")?,
        most_lost: count(row, "most_lost")?,
        failed,
    })
}

fn read_stats(row: &PgRow) -> Result<QueueStats, sqlx::Error> {
    let oldest: Option<f64> = row.try_get("oldest")?;
    Ok(QueueStats {
        queue: row.try_get("queue")?,
        pending: big_count(row, "pending")?,
        processing: big_count(row, "processing")?,
        failed: big_count(row, "failed")?,
        blocked_keys: big_count(row, "blocked_keys")?,
        // A created_at in the future is somebody else's clock: no age.
        oldest_pending_age: oldest.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()),
        last_seq: row.try_get("last_seq")?,
        paused: row.try_get("paused")?,
    })
}

fn read_failed(row: &PgRow) -> Result<FailedEvent, sqlx::Error> {
    Ok(FailedEvent {
        id: row.try_get("id")?,
        seq: row.try_get("seq")?,
        queue: row.try_get("queue")?,
        aggregate_type: row.try_get("aggregate_type")?,
        aggregate_id: row.try_get("aggregate_id")?,
        event_type: row.try_get("event_type")?,
        retry_count: count(row, "retry_count")?,
        lost_count: count(row, "lost_count")?,
        last_error: row.try_get("last_error")?,
        failed_at: time_at(row, "failed_at")?,
    })
}

fn count(row: &PgRow, column: &str) -> Result<u32, sqlx::Error> {
    row.try_get::<i32, _>(column).map(|count| u32::try_from(count).unwrap_or(0))
}

fn big_count(row: &PgRow, column: &str) -> Result<u64, sqlx::Error> {
    row.try_get::<i64, _>(column).map(|count| u64::try_from(count).unwrap_or(0))
}
