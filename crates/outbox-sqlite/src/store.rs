use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering as Atomic};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox_store::{
    Claim, Claimer, FailedEvent, QueuePolicy, QueueStats, SchemaState, Selection, Settled, Store, StoreError,
    Swept, Verdict, WalCheckpoint,
};
use rusqlite::{Connection, Transaction};
use tokio::sync::Mutex;

use crate::claim::SqliteClaimer;
use crate::error::Error;
use crate::options::SqliteOptions;
use crate::settle::Decided;
use crate::writer::{Writer, retried, spawn};
use crate::{connection, migrate, operator, settle, sweep};

/// Most rows that one transaction of an operator or of retention touches: an application's transaction never waits
/// long for it.
const ROWS_PER_TRANSACTION: u32 = 500;

/// An outbox in a SQLite file.
///
/// One connection writes and another reads; SQLite is called on blocking threads. Write transactions are short, and
/// while another connection writes too, the store pauses between them.
pub struct SqliteStore {
    shared: Arc<Shared>,
    reader: Arc<Mutex<Option<Connection>>>,
    /// When the whole WAL was last in the database.
    checkpointed: std::sync::Mutex<Instant>,
}

/// What a store and its claimers have in common.
pub(crate) struct Shared {
    pub(crate) options: SqliteOptions,
    pub(crate) writer: Writer,
    pub(crate) signals: Signals,
}

/// Counts commits of this process that idle claimers must hear of; those of others show in the data version.
#[derive(Default)]
pub(crate) struct Signals {
    claimable: AtomicU64,
    settles: AtomicU64,
}

impl Signals {
    /// Grows when rows may have become claimable.
    pub(crate) fn claimable(&self) -> u64 {
        self.claimable.load(Atomic::Acquire)
    }

    /// Grows with each settle.
    pub(crate) fn settles(&self) -> u64 {
        self.settles.load(Atomic::Acquire)
    }

    fn raise_claimable(&self) {
        self.claimable.fetch_add(1, Atomic::Release);
    }

    fn raise_settles(&self) {
        self.settles.fetch_add(1, Atomic::Release);
    }
}

impl SqliteStore {
    /// Opens the database. Does not look at the schema; see [`Store::schema_state`].
    ///
    /// # Errors
    /// [`StoreError::Unfit`] says what is wrong with the file, or with the SQLite library that was built in.
    pub async fn open(options: SqliteOptions) -> Result<Self, StoreError> {
        spawn(move || {
            connection::check_library()?;
            let writer = connection::open(&options)?;
            // From here on the store waits for locks itself, with jitter and counted.
            writer.busy_timeout(Duration::ZERO).map_err(Error::from)?;
            let reader = connection::open_reader(&options)?;
            let writer = Writer::new(writer, options.busy_timeout, options.synchronous);
            Ok(Self {
                shared: Arc::new(Shared { options, writer, signals: Signals::default() }),
                reader: Arc::new(Mutex::new(Some(reader))),
                checkpointed: std::sync::Mutex::new(Instant::now()),
            })
        })
        .await
    }

    async fn read<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    {
        let reader = Arc::clone(&self.reader).lock_owned().await;
        spawn(move || {
            let conn = reader.as_ref().ok_or_else(|| Error::unavailable("the store is closed"))?;
            // One snapshot for all that is read.
            let snapshot = conn.unchecked_transaction()?;
            work(&snapshot)
        })
        .await
    }

    async fn write<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Transaction<'_>) -> Result<T, Error> + Send + 'static,
    {
        self.shared.writer.transaction(work).await
    }

    /// Changes the FAILED rows that are meant, a few at a time and those of a key in order.
    async fn change_failed(
        &self,
        selection: &Selection,
        change: fn(&Connection, &[i64]) -> Result<u64, Error>,
    ) -> Result<u64, StoreError> {
        let selection = selection.clone();
        let seqs = self.read(move |conn| operator::selected(conn, &selection)).await?;
        let mut changed = 0;
        for seqs in seqs.chunks(ROWS_PER_TRANSACTION as usize) {
            let seqs = seqs.to_vec();
            changed += self.write(move |conn| change(conn, &seqs)).await?;
            self.shared.signals.raise_claimable();
        }
        Ok(changed)
    }

    fn wal_path(&self) -> PathBuf {
        let mut path = self.shared.options.path.clone().into_os_string();
        path.push("-wal");
        PathBuf::from(path)
    }

    /// Reports how much WAL there is, and since when.
    fn report_wal(&self, checkpoint: &WalCheckpoint) {
        let Ok(mut checkpointed) = self.checkpointed.lock() else { return };
        if checkpoint.checkpointed_frames == checkpoint.wal_frames {
            *checkpointed = Instant::now();
        }
        metrics::gauge!("outbox_wal_checkpoint_age_seconds").set(checkpointed.elapsed().as_secs_f64());
        metrics::gauge!("outbox_wal_bytes").set(checkpoint.wal_bytes as f64);
    }
}

#[async_trait]
impl Store for SqliteStore {
    async fn schema_state(&self) -> Result<SchemaState, StoreError> {
        self.read(migrate::state).await
    }

    async fn migrate(&self) -> Result<Vec<i64>, StoreError> {
        let busy_timeout = self.shared.options.busy_timeout;
        self.shared
            .writer
            .run(move |slot| {
                let conn = slot.conn()?;
                migrate::check_wal(&retried(busy_timeout, || migrate::set_wal(conn))?)
            })
            .await?;
        self.write(|conn| migrate::migrate(conn)).await
    }

    async fn register_queues(&self, queues: &[&str]) -> Result<(), StoreError> {
        let queues: Vec<String> = queues.iter().map(ToString::to_string).collect();
        self.write(move |conn| {
            for queue in &queues {
                conn.prepare_cached(include_str!("sql/queue_register.sql"))?.execute([queue])?;
            }
            Ok(())
        })
        .await
    }

    fn claimer(&self, policy: Arc<QueuePolicy>) -> Box<dyn Claimer> {
        Box::new(SqliteClaimer::new(Arc::clone(&self.shared), policy))
    }

    async fn settle(
        &self,
        policy: &QueuePolicy,
        claim: &Claim,
        verdicts: &[Verdict],
    ) -> Result<Settled, StoreError> {
        if verdicts.len() != claim.events.len() {
            let counts = format!("{} verdicts for {} rows", verdicts.len(), claim.events.len());
            return Err(StoreError::Failed(counts.into()));
        }
        let (policy, token) = (policy.clone(), claim.token);
        let decided: Vec<Decided> = claim
            .events
            .iter()
            .zip(verdicts)
            .map(|(event, verdict)| Decided { seq: event.row.0.cast_signed(), verdict: verdict.clone() })
            .collect();
        let outcome = self.write(move |conn| settle::settle(conn, &policy, token, &decided)).await?;
        if outcome.claimable {
            self.shared.signals.raise_claimable();
        }
        self.shared.signals.raise_settles();
        Ok(outcome.settled)
    }

    async fn sweep(&self, policy: &QueuePolicy) -> Result<Option<Swept>, StoreError> {
        let policy = policy.clone();
        let swept = self.write(move |conn| sweep::sweep(conn, &policy)).await?;
        if swept.is_some() {
            self.shared.signals.raise_claimable();
        }
        Ok(swept)
    }

    async fn recover_orphans(&self, policy: &QueuePolicy) -> Result<u64, StoreError> {
        let search = policy.clone();
        let orphans = self.read(move |conn| sweep::orphans(conn, &search)).await?;
        let mut recovered = 0;
        for orphans in orphans.chunks(ROWS_PER_TRANSACTION as usize) {
            let (policy, orphans) = (policy.clone(), orphans.to_vec());
            recovered += self.write(move |conn| sweep::recover_orphans(conn, &policy, &orphans)).await?;
            self.shared.signals.raise_claimable();
        }
        Ok(recovered)
    }

    async fn purge(&self, policy: &QueuePolicy, limit: u32) -> Result<u64, StoreError> {
        let mut purged = 0;
        while purged < u64::from(limit) {
            let policy = policy.clone();
            let left = u64::from(limit) - purged;
            let most = u32::try_from(left).unwrap_or(u32::MAX).min(ROWS_PER_TRANSACTION);
            let gone = self.write(move |conn| sweep::purge(conn, &policy, most)).await?;
            purged += gone;
            if gone < u64::from(most) {
                break;
            }
        }
        if purged > 0 && policy.failed_keep_for.is_some() {
            self.shared.signals.raise_claimable();
        }
        Ok(purged)
    }

    async fn checkpoint(&self) -> Result<Option<WalCheckpoint>, StoreError> {
        let (options, wal) =
            (SqliteOptions { create: false, ..self.shared.options.clone() }, self.wal_path());
        // On a connection of its own: it may flush much, and nobody has to wait for that.
        let done = spawn(move || {
            let conn = connection::open(&options)?;
            let (wal_frames, checkpointed_frames) =
                conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
                    Ok((row.get::<_, i64>(1)?.max(0), row.get::<_, i64>(2)?.max(0)))
                })?;
            let wal_bytes = std::fs::metadata(wal).map_or(0, |meta| meta.len());
            Ok(WalCheckpoint {
                wal_frames: wal_frames.cast_unsigned(),
                checkpointed_frames: checkpointed_frames.cast_unsigned(),
                wal_bytes,
            })
        })
        .await?;
        self.report_wal(&done);
        Ok(Some(done))
    }

    async fn stats(&self) -> Result<Vec<QueueStats>, StoreError> {
        self.read(operator::stats).await
    }

    async fn set_paused(&self, queue: &str, paused: bool) -> Result<(), StoreError> {
        let queue = queue.to_owned();
        self.write(move |conn| {
            conn.prepare_cached(include_str!("sql/queue_pause.sql"))?
                .execute(rusqlite::params![queue, paused])?;
            Ok(())
        })
        .await?;
        self.shared.signals.raise_claimable();
        Ok(())
    }

    async fn failed(&self, selection: &Selection, limit: u32) -> Result<Vec<FailedEvent>, StoreError> {
        let selection = selection.clone();
        self.read(move |conn| operator::failed(conn, &selection, limit)).await
    }

    async fn retry_failed(&self, selection: &Selection) -> Result<u64, StoreError> {
        self.change_failed(selection, operator::retry_failed).await
    }

    async fn discard_failed(&self, selection: &Selection) -> Result<u64, StoreError> {
        self.change_failed(selection, operator::discard_failed).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        self.read(|conn| Ok(conn.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))?)).await
    }

    async fn close(&self) {
        self.shared.writer.close().await;
        self.reader.lock().await.take();
    }
}
