use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outbox_sqlite::{SqliteOptions, SqliteStore};
use outbox_store::contract::{Block, Harness, NewRow, Row, When, Writer};
use outbox_store::{Payload, Store};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Row as _, SqliteExecutor};
use tempfile::TempDir;
use tokio::sync::Mutex;
use uuid::Uuid;

use super::{available, delay_ms};

const INFINITY: i64 = i64::MAX;
const NOW: &str = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)";

/// Connections of writers that are done.
type Writers = Arc<std::sync::Mutex<Vec<SqliteConnection>>>;

/// A database file of its own.
pub struct SqliteHarness {
    dir: TempDir,
    editor: Mutex<SqliteConnection>,
    writers: Writers,
    relays: AtomicU32,
}

fn options(harness: &TempDir, file: &str) -> SqliteConnectOptions {
    let path = harness.path().join(file);
    SqliteConnectOptions::new().filename(path).busy_timeout(Duration::from_secs(30))
}

async fn run(db: impl SqliteExecutor<'_>, sql: String) {
    sqlx::query(sqlx::AssertSqlSafe(sql)).execute(db).await.expect("edit");
}

impl SqliteHarness {
    /// A migrated database.
    pub async fn new() -> Self {
        Self::within(TempDir::new().expect("directory")).await
    }

    /// A migrated database whose file lies in memory where there is such a place: each claim is flushed.
    pub async fn in_memory_if_possible() -> Self {
        Self::within(TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).expect("directory")).await
    }

    async fn within(dir: TempDir) -> Self {
        let mut options_ = SqliteOptions::new(dir.path().join("outbox.db"), "migrate");
        options_.create = true;
        let store = SqliteStore::open(options_).await.expect("open");
        store.migrate().await.expect("migrate");
        store.close().await;
        let editor = Mutex::new(options(&dir, "outbox.db").connect().await.expect("connect"));
        Self { dir, editor, writers: Writers::default(), relays: AtomicU32::new(0) }
    }

    /// Path of the database file.
    #[must_use]
    pub fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("outbox.db")
    }

    /// Empties every table.
    pub async fn clear(&self) {
        self.edit("DELETE FROM outbox_tasks").await;
        self.edit("DELETE FROM outbox_claims").await;
        self.edit("DELETE FROM outbox_blocked_keys").await;
        self.edit("UPDATE outbox_queues SET paused = 0").await;
    }

    async fn edit(&self, sql: &str) {
        run(&mut *self.editor.lock().await, sql.to_owned()).await;
    }
}

#[async_trait]
impl Harness for SqliteHarness {
    async fn store(&self) -> Arc<dyn Store> {
        let name = format!("relay-{}", self.relays.fetch_add(1, Ordering::Relaxed));
        Arc::new(SqliteStore::open(SqliteOptions::new(self.path(), name)).await.expect("open"))
    }

    async fn unmigrated(&self) -> Arc<dyn Store> {
        let mut options = SqliteOptions::new(self.dir.path().join(format!("{}.db", Uuid::now_v7())), "relay");
        options.create = true;
        Arc::new(SqliteStore::open(options).await.expect("open"))
    }

    fn concurrent_writers(&self) -> bool {
        false
    }

    async fn begin(&self) -> Box<dyn Writer> {
        let idle = self.writers.lock().expect("writers").pop();
        let mut conn = match idle {
            Some(conn) => conn,
            None => options(&self.dir, "outbox.db").connect().await.expect("connect"),
        };
        sqlx::query("BEGIN IMMEDIATE").execute(&mut conn).await.expect("begin");
        Box::new(SqliteWriter { conn, writers: Arc::clone(&self.writers) })
    }

    async fn rows(&self) -> Vec<Row> {
        let select = format!(
            "SELECT id, seq, queue, aggregate_id, coalesce(event_type, '') AS label, status, retry_count, lost_count, \
             last_error, receipt, available_at, claim_token, settled_at IS NOT NULL AS settled, \
             failed_at IS NOT NULL AS failed, updated_at, {NOW} AS now FROM outbox_tasks ORDER BY seq"
        );
        let mut db = self.editor.lock().await;
        let rows = sqlx::query(sqlx::AssertSqlSafe(select)).fetch_all(&mut *db).await.expect("rows");
        rows.iter()
            .map(|row| {
                let now: i64 = row.get("now");
                let seconds = row.get::<Option<i64>, _>("available_at").map(|at| match at {
                    INFINITY => f64::INFINITY,
                    at => (at - now) as f64 / 1000.0,
                });
                Row {
                    id: row.get::<String, _>("id").parse().expect("a UUID"),
                    seq: row.get("seq"),
                    queue: row.get("queue"),
                    key: row.get("aggregate_id"),
                    label: row.get("label"),
                    status: row.get("status"),
                    retry_count: row.get("retry_count"),
                    lost_count: row.get("lost_count"),
                    last_error: row.get("last_error"),
                    receipt: row.get("receipt"),
                    available: available(seconds),
                    claim_token: row.get("claim_token"),
                    settled: row.get("settled"),
                    failed: row.get("failed"),
                    updated_at: row.get::<i64, _>("updated_at") * 1000,
                }
            })
            .collect()
    }

    async fn blocks(&self) -> Vec<Block> {
        let mut db = self.editor.lock().await;
        let select =
            "SELECT aggregate_id, hold_after, released FROM outbox_blocked_keys ORDER BY queue, aggregate_id";
        let rows = sqlx::query(select).fetch_all(&mut *db).await.expect("blocks");
        rows.iter()
            .map(|row| Block { key: row.get(0), hold_after: row.get(1), released: row.get(2) })
            .collect()
    }

    async fn claims(&self) -> Vec<i64> {
        let mut db = self.editor.lock().await;
        sqlx::query_scalar("SELECT token FROM outbox_claims ORDER BY token")
            .fetch_all(&mut *db)
            .await
            .expect("claims")
    }

    async fn in_flight(&self) -> Vec<(i64, String, Duration)> {
        let mut db = self.editor.lock().await;
        let select = format!("SELECT seq, relay, lease_until - {NOW} FROM outbox_in_flight ORDER BY seq");
        let rows = sqlx::query(sqlx::AssertSqlSafe(select)).fetch_all(&mut *db).await.expect("in flight");
        let left = |ms: i64| Duration::from_millis(u64::try_from(ms).unwrap_or(0));
        rows.iter().map(|row| (row.get(0), row.get(1), left(row.get(2)))).collect()
    }

    async fn expire_claims(&self) {
        self.edit(&format!("UPDATE outbox_claims SET lease_until = {NOW} - 1000")).await;
    }

    async fn make_due(&self, seqs: &[i64]) {
        let named = if seqs.is_empty() {
            String::new()
        } else {
            format!("AND seq IN ({})", seqs.iter().map(i64::to_string).collect::<Vec<_>>().join(", "))
        };
        let later = format!("settled_at IS NULL AND available_at < {INFINITY} AND available_at > {NOW}");
        self.edit(&format!("UPDATE outbox_tasks SET available_at = {NOW} WHERE {later} {named}")).await;
    }

    async fn age(&self, by: Duration) {
        let ms = by.as_millis();
        self.edit(&format!(
            "UPDATE outbox_tasks SET created_at = created_at - {ms}, updated_at = updated_at - {ms}, \
             settled_at = settled_at - {ms}, failed_at = failed_at - {ms}"
        ))
        .await;
    }

    async fn forget_claims(&self) {
        self.edit("DELETE FROM outbox_claims").await;
    }

    async fn set_counts(&self, seq: i64, retry_count: i64, lost_count: i64) {
        let set = format!("retry_count = {retry_count}, lost_count = {lost_count}");
        self.edit(&format!("UPDATE outbox_tasks SET {set} WHERE seq = {seq}")).await;
    }

    async fn park(&self, seq: i64, when: When, error: Option<&str>) {
        let at = delay_ms(when).map_or_else(|| INFINITY.to_string(), |ms| format!("{NOW} + {ms}"));
        let update = format!("UPDATE outbox_tasks SET available_at = {at}, last_error = ? WHERE seq = ?");
        let query = sqlx::query(sqlx::AssertSqlSafe(update)).bind(error.map(str::to_owned)).bind(seq);
        query.execute(&mut *self.editor.lock().await).await.expect("park");
    }

    async fn put_block(&self, key: &str, hold_after: i64, released: bool) {
        let insert = "INSERT INTO outbox_blocked_keys \
            (queue, aggregate_type, aggregate_id, hold_after, released, follow_from) \
            VALUES ('default', 'Order', ?, ?, ?, ?)";
        let query = sqlx::query(insert).bind(key.to_owned()).bind(hold_after).bind(released).bind(hold_after);
        query.execute(&mut *self.editor.lock().await).await.expect("block");
    }
}

struct SqliteWriter {
    conn: SqliteConnection,
    writers: Writers,
}

impl SqliteWriter {
    async fn end(mut self, how: &str) {
        run(&mut self.conn, how.to_owned()).await;
        self.writers.lock().expect("writers").push(self.conn);
    }
}

const INSERT: &str = "INSERT INTO outbox_tasks (id, queue, aggregate_type, aggregate_id, event_type, payload, content_type, \
    headers, destination, max_retries, priority, available_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ";

#[async_trait]
impl Writer for SqliteWriter {
    async fn insert(&mut self, row: &NewRow) -> i64 {
        let available_at = match (row.when, delay_ms(row.when)) {
            (When::Parked, _) => INFINITY.to_string(),
            (_, Some(ms)) => format!("{NOW} + {ms}"),
            _ => "NULL".to_owned(),
        };
        let query = sqlx::query(sqlx::AssertSqlSafe(format!("{INSERT}{available_at})")))
            .bind(row.id.to_string())
            .bind(&row.queue)
            .bind(&row.aggregate_type)
            .bind(&row.aggregate_id)
            .bind(&row.event_type);
        let query = match &row.payload {
            Payload::Json(text) | Payload::Text(text) => {
                query.bind(String::from_utf8(text.to_vec()).expect("UTF-8"))
            }
            Payload::Binary(bytes) => query.bind(bytes.to_vec()),
            Payload::Tombstone => query.bind(None::<String>),
        };
        query
            .bind(&row.content_type)
            .bind(&row.headers)
            .bind(&row.destination)
            .bind(row.max_retries)
            .bind(row.priority)
            .execute(&mut self.conn)
            .await
            .expect("insert")
            .last_insert_rowid()
    }

    async fn lock_row(&mut self, _seq: i64) {
        unreachable!("SQLite locks no rows");
    }

    async fn lock_queue(&mut self, _queue: &str) {
        unreachable!("SQLite locks no rows");
    }

    async fn commit(self: Box<Self>) {
        self.end("COMMIT").await;
    }

    async fn rollback(self: Box<Self>) {
        self.end("ROLLBACK").await;
    }
}
