//! The loop that most applications write first, to compare with: an index on status and created_at, `jsonb`, a batch
//! claimed by one UPDATE and settled by another. No order per key, no leases, no fence.

use anyhow::Result;
use sqlx::{Connection, PgConnection, Row, SqliteConnection};

use crate::workload::Workload;

const POSTGRES_TABLE: &str = "
DROP TABLE IF EXISTS textbook;
CREATE TABLE textbook (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, aggregate_id text NOT NULL,
  payload jsonb, status text NOT NULL DEFAULT 'PENDING', retry_count int NOT NULL DEFAULT 0,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(), updated_at timestamptz);
CREATE INDEX ON textbook (status, created_at);";

const POSTGRES_LOAD: &str = "
INSERT INTO textbook (aggregate_type, aggregate_id, payload)
SELECT 'Order', (i::bigint * 7919 % $2)::text, jsonb_build_object('n', i, 'pad', repeat('x', $3))
FROM generate_series(1, $1::int) i";

const POSTGRES_CLAIM: &str = "
UPDATE textbook SET status = 'PROCESSING', updated_at = now() WHERE id IN (
  SELECT id FROM textbook WHERE status = 'PENDING' ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED)
RETURNING id, aggregate_type, aggregate_id, payload::text";

const POSTGRES_SETTLE: &str =
    "UPDATE textbook SET status = 'PUBLISHED', updated_at = now() WHERE id = ANY($1)";

const SQLITE_TABLE: &str = "
DROP TABLE IF EXISTS textbook;
CREATE TABLE textbook (
  id TEXT PRIMARY KEY, aggregate_type TEXT NOT NULL, aggregate_id TEXT NOT NULL, payload TEXT,
  status TEXT NOT NULL DEFAULT 'PENDING', retry_count INTEGER NOT NULL DEFAULT 0,
  created_at INTEGER NOT NULL, updated_at INTEGER);
CREATE INDEX textbook_status ON textbook (status, created_at);";

const SQLITE_LOAD: &str = "
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
INSERT INTO textbook (id, aggregate_type, aggregate_id, payload, created_at)
SELECT lower(hex(randomblob(16))), 'Order', i * 7919 % ?2, json_object('n', i, 'pad', printf('%.*c', ?3, 'x')), i
FROM n";

const SQLITE_CLAIM: &str = "
UPDATE textbook SET status = 'PROCESSING', updated_at = unixepoch() WHERE id IN (
  SELECT id FROM textbook WHERE status = 'PENDING' ORDER BY created_at LIMIT ?1)
RETURNING id, aggregate_type, aggregate_id, payload";

const SQLITE_SETTLE: &str = "
UPDATE textbook SET status = 'PUBLISHED', updated_at = unixepoch()
WHERE id IN (SELECT value FROM json_each(?1))";

/// Fills the PostgreSQL table.
pub(crate) async fn load_postgres(db: &mut PgConnection, work: &Workload) -> Result<()> {
    sqlx::raw_sql(POSTGRES_TABLE).execute(&mut *db).await?;
    sqlx::query(POSTGRES_LOAD)
        .bind(i32::try_from(work.rows)?)
        .bind(i64::from(work.keys))
        .bind(i32::try_from(work.pad())?)
        .execute(&mut *db)
        .await?;
    sqlx::raw_sql("VACUUM ANALYZE textbook").execute(db).await?;
    Ok(())
}

/// Drains the PostgreSQL table; returns how many rows it saw.
pub(crate) async fn drain_postgres(db: &mut PgConnection, batch: u32) -> Result<u64> {
    let mut drained = 0;
    loop {
        let rows = sqlx::query(POSTGRES_CLAIM).bind(i64::from(batch)).fetch_all(&mut *db).await?;
        if rows.is_empty() {
            return Ok(drained);
        }
        let ids = rows
            .iter()
            .map(|row| {
                std::hint::black_box(row.try_get::<&str, _>(3)?);
                row.try_get::<sqlx::types::Uuid, _>(0)
            })
            .collect::<Result<Vec<_>, _>>()?;
        drained += ids.len() as u64;
        sqlx::query(POSTGRES_SETTLE).bind(ids).execute(&mut *db).await?;
    }
}

/// Fills the SQLite table.
pub(crate) async fn load_sqlite(db: &mut SqliteConnection, work: &Workload) -> Result<()> {
    sqlx::raw_sql(SQLITE_TABLE).execute(&mut *db).await?;
    sqlx::query(SQLITE_LOAD)
        .bind(i64::from(work.rows))
        .bind(i64::from(work.keys))
        .bind(i64::from(work.pad()))
        .execute(db)
        .await?;
    Ok(())
}

/// Drains the SQLite table; returns how many rows it saw.
pub(crate) async fn drain_sqlite(db: &mut SqliteConnection, batch: u32) -> Result<u64> {
    let mut drained = 0;
    loop {
        let mut tx = db.begin_with("BEGIN IMMEDIATE").await?;
        let rows = sqlx::query(SQLITE_CLAIM).bind(i64::from(batch)).fetch_all(&mut *tx).await?;
        tx.commit().await?;
        if rows.is_empty() {
            return Ok(drained);
        }
        let ids = rows
            .iter()
            .map(|row| {
                std::hint::black_box(row.try_get::<&str, _>(3)?);
                row.try_get::<String, _>(0)
            })
            .collect::<Result<Vec<_>, _>>()?;
        drained += ids.len() as u64;
        let ids = serde_json::to_string(&ids)?;
        let mut tx = db.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::query(SQLITE_SETTLE).bind(ids).execute(&mut *tx).await?;
        tx.commit().await?;
    }
}
