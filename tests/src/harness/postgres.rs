use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outbox_postgres::{PostgresOptions, PostgresStore};
use outbox_store::contract::{Block, Harness, NewRow, Row, When, Writer};
use outbox_store::{Payload, Store};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgExecutor, Row as _};
use tokio::sync::Mutex;

use super::{available, delay_ms};
use crate::postgres::Postgres;

/// Connections of writers that are done.
type Writers = Arc<std::sync::Mutex<Vec<PgConnection>>>;

/// A database of its own on a shared server.
pub struct PostgresHarness {
    server: &'static Postgres,
    url: String,
    editor: Mutex<PgConnection>,
    writers: Writers,
    relays: AtomicU32,
    clears: AtomicU32,
}

/// A store on the database at `url`, in its `public` schema.
async fn open(url: &str, relay: &str) -> PostgresStore {
    let mut options = PostgresOptions::from_url(url).expect("options");
    relay.clone_into(&mut options.relay);
    PostgresStore::connect(options).await.expect("connect")
}

async fn run(db: impl PgExecutor<'_>, sql: String) {
    sqlx::query(AssertSqlSafe(sql)).execute(db).await.expect("edit");
}

impl PostgresHarness {
    /// A migrated database on the server.
    pub async fn new(server: &'static Postgres) -> Self {
        let template = server.template(migrate).await;
        let url = server.create_database(Some(template)).await.expect("database");
        let editor = Mutex::new(PgConnection::connect(&url).await.expect("connect"));
        Self {
            server,
            url,
            editor,
            writers: Writers::default(),
            relays: AtomicU32::new(0),
            clears: AtomicU32::new(0),
        }
    }

    /// Connection URL of the database.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Empties every table. Cheap in most cases; now and then the dead rows go as well.
    pub async fn clear(&self) {
        if self.clears.fetch_add(1, Ordering::Relaxed) % 64 == 63 {
            self.edit("TRUNCATE outbox_tasks, outbox_claims, outbox_blocked_keys").await;
        }
        self.edit("DELETE FROM outbox_tasks").await;
        self.edit("DELETE FROM outbox_claims").await;
        self.edit("DELETE FROM outbox_blocked_keys").await;
        self.edit("UPDATE outbox_queues SET paused = false WHERE paused").await;
    }

    /// Runs a statement on the harness's own connection.
    pub async fn edit(&self, sql: &str) {
        run(&mut *self.editor.lock().await, sql.to_owned()).await;
    }
}

async fn migrate(url: String) {
    let store = open(&url, "migrate").await;
    store.migrate().await.expect("migrate");
    store.close().await;
}

#[async_trait]
impl Harness for PostgresHarness {
    async fn store(&self) -> Arc<dyn Store> {
        let name = format!("relay-{}", self.relays.fetch_add(1, Ordering::Relaxed));
        Arc::new(open(&self.url, &name).await)
    }

    async fn unmigrated(&self) -> Arc<dyn Store> {
        let url = self.server.create_database(None).await.expect("database");
        Arc::new(open(&url, "relay").await)
    }

    fn concurrent_writers(&self) -> bool {
        true
    }

    async fn begin(&self) -> Box<dyn Writer> {
        let idle = self.writers.lock().expect("writers").pop();
        let mut conn = match idle {
            Some(conn) => conn,
            None => PgConnection::connect(&self.url).await.expect("connect"),
        };
        run(&mut conn, "BEGIN".to_owned()).await;
        Box::new(PostgresWriter { conn, writers: Arc::clone(&self.writers) })
    }

    async fn rows(&self) -> Vec<Row> {
        let select = "SELECT id, seq, queue, aggregate_id, coalesce(event_type, '') AS label, status::text, \
            retry_count::bigint, lost_count::bigint, last_error, receipt, \
            CASE WHEN isfinite(available_at) THEN extract(epoch FROM available_at)::float8 - extract(epoch FROM clock_timestamp())::float8 \
              WHEN available_at IS NOT NULL THEN 'infinity'::float8 END AS seconds, \
            claim_token, settled_at IS NOT NULL AS settled, failed_at IS NOT NULL AS failed, \
            (extract(epoch FROM updated_at) * 1000000)::bigint AS updated_at FROM outbox_tasks ORDER BY outbox_tasks.seq";
        let rows = sqlx::query(select).fetch_all(&mut *self.editor.lock().await).await.expect("rows");
        rows.iter()
            .map(|row| Row {
                id: row.get("id"),
                seq: row.get("seq"),
                queue: row.get("queue"),
                key: row.get("aggregate_id"),
                label: row.get("label"),
                status: row.get("status"),
                retry_count: row.get("retry_count"),
                lost_count: row.get("lost_count"),
                last_error: row.get("last_error"),
                receipt: row.get("receipt"),
                available: available(row.get("seconds")),
                claim_token: row.get("claim_token"),
                settled: row.get("settled"),
                failed: row.get("failed"),
                updated_at: row.get("updated_at"),
            })
            .collect()
    }

    async fn blocks(&self) -> Vec<Block> {
        let select =
            "SELECT aggregate_id, hold_after, released FROM outbox_blocked_keys ORDER BY queue, aggregate_id";
        let rows = sqlx::query(select).fetch_all(&mut *self.editor.lock().await).await.expect("blocks");
        rows.iter()
            .map(|row| Block { key: row.get(0), hold_after: row.get(1), released: row.get(2) })
            .collect()
    }

    async fn claims(&self) -> Vec<i64> {
        let select = sqlx::query_scalar("SELECT token FROM outbox_claims ORDER BY token");
        select.fetch_all(&mut *self.editor.lock().await).await.expect("claims")
    }

    async fn in_flight(&self) -> Vec<(i64, String, Duration)> {
        let select = "SELECT seq, relay, extract(epoch FROM lease_until - clock_timestamp())::float8 \
            FROM outbox_in_flight ORDER BY seq";
        let rows = sqlx::query(select).fetch_all(&mut *self.editor.lock().await).await.expect("in flight");
        let left = |seconds: f64| Duration::from_secs_f64(seconds.max(0.0));
        rows.iter().map(|row| (row.get(0), row.get(1), left(row.get(2)))).collect()
    }

    async fn expire_claims(&self) {
        self.edit("UPDATE outbox_claims SET lease_until = clock_timestamp() - interval '1 second'").await;
    }

    /// As the relay itself makes rows claimable again: the time is read once the transaction has its id.
    async fn make_due(&self, seqs: &[i64]) {
        let mut db = self.editor.lock().await;
        let mut tx = db.begin().await.expect("begin");
        run(&mut *tx, "SELECT pg_current_xact_id()".to_owned()).await;
        let update = "UPDATE outbox_tasks SET available_at = clock_timestamp() \
            WHERE settled_at IS NULL AND available_at < 'infinity' AND available_at > clock_timestamp() \
            AND (cardinality($1) = 0 OR seq = ANY($1))";
        sqlx::query(update).bind(seqs.to_vec()).execute(&mut *tx).await.expect("make due");
        tx.commit().await.expect("commit");
    }

    async fn age(&self, by: Duration) {
        let update = "UPDATE outbox_tasks SET created_at = created_at - x, updated_at = updated_at - x, \
            settled_at = settled_at - x, failed_at = failed_at - x FROM make_interval(secs => $1) x";
        let query = sqlx::query(update).bind(by.as_secs_f64());
        query.execute(&mut *self.editor.lock().await).await.expect("age");
    }

    async fn forget_claims(&self) {
        self.edit("DELETE FROM outbox_claims").await;
    }

    async fn set_counts(&self, seq: i64, retry_count: i64, lost_count: i64) {
        let set = format!("retry_count = {retry_count}, lost_count = {lost_count}");
        self.edit(&format!("UPDATE outbox_tasks SET {set} WHERE seq = {seq}")).await;
    }

    async fn park(&self, seq: i64, when: When, error: Option<&str>) {
        let update = "UPDATE outbox_tasks SET last_error = $2, \
            available_at = coalesce(clock_timestamp() + $3 * interval '1 ms', 'infinity') WHERE seq = $1";
        let query = sqlx::query(update).bind(seq).bind(error).bind(delay_ms(when));
        query.execute(&mut *self.editor.lock().await).await.expect("park");
    }

    async fn put_block(&self, key: &str, hold_after: i64, released: bool) {
        let insert = "INSERT INTO outbox_blocked_keys \
            (queue, aggregate_type, aggregate_id, hold_after, released, follow_from) \
            VALUES ('default', 'Order', $1, $2, $3, $2)";
        let query = sqlx::query(insert).bind(key).bind(hold_after).bind(released);
        query.execute(&mut *self.editor.lock().await).await.expect("block");
    }
}

struct PostgresWriter {
    conn: PgConnection,
    writers: Writers,
}

impl PostgresWriter {
    async fn end(mut self, how: &str) {
        run(&mut self.conn, how.to_owned()).await;
        self.writers.lock().expect("writers").push(self.conn);
    }
}

// now() as an application would use it: the start of its transaction.
const INSERT: &str = "INSERT INTO outbox_tasks (id, queue, aggregate_type, aggregate_id, event_type, payload, payload_bytes, \
    content_type, headers, destination, max_retries, priority, available_at) \
    VALUES ($1, $2, $3, $4, $5, $6::text::json, $7, $8, $9::text::json, $10, $11, $12, \
      CASE WHEN $13 = 'infinity'::float8 THEN 'infinity' ELSE now() + $13 * interval '1 ms' END) RETURNING seq";

#[async_trait]
impl Writer for PostgresWriter {
    async fn insert(&mut self, row: &NewRow) -> i64 {
        let (json, bytes) = match &row.payload {
            Payload::Json(text) | Payload::Text(text) => {
                (Some(std::str::from_utf8(text).expect("UTF-8")), None)
            }
            Payload::Binary(bytes) => (None, Some(&bytes[..])),
            Payload::Tombstone => (None, None),
        };
        let delay = if row.when == When::Parked {
            Some(f64::INFINITY)
        } else {
            delay_ms(row.when).map(|ms| ms as f64)
        };
        sqlx::query_scalar(INSERT)
            .bind(row.id)
            .bind(&row.queue)
            .bind(&row.aggregate_type)
            .bind(&row.aggregate_id)
            .bind(&row.event_type)
            .bind(json)
            .bind(bytes)
            .bind(&row.content_type)
            .bind(&row.headers)
            .bind(&row.destination)
            .bind(row.max_retries.map(|n| i32::try_from(n).expect("small")))
            .bind(row.priority)
            .bind(delay)
            .fetch_one(&mut self.conn)
            .await
            .expect("insert")
    }

    async fn lock_row(&mut self, seq: i64) {
        run(&mut self.conn, format!("SELECT FROM outbox_tasks WHERE seq = {seq} FOR UPDATE")).await;
    }

    async fn lock_queue(&mut self, queue: &str) {
        run(&mut self.conn, format!("SELECT FROM outbox_queues WHERE queue = '{queue}' FOR UPDATE")).await;
    }

    async fn commit(self: Box<Self>) {
        self.end("COMMIT").await;
    }

    async fn rollback(self: Box<Self>) {
        self.end("ROLLBACK").await;
    }
}
