//! The least that a drain can cost: claim and settle statements back to back on one connection, without a relay.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use outbox_store::{Claimed, Published, QueuePolicy, Settled, Verdict};
use sqlx::{Connection, PgConnection, Row};

use crate::cost::{Cost, Meter};
use crate::drain::{fill_postgres, fill_sqlite, open_sqlite};
use crate::engine::{Engine, Server};
use crate::in_process;
use crate::workload::Workload;

/// The statements that the relay sends, by the store alone.
pub(crate) async fn shipped(server: &Server, work: &Workload, published: Published) -> Result<Cost> {
    let database = server.fresh_database().await?;
    let store = in_process::open(server.engine(), &database).await?;
    match server.engine() {
        Engine::Postgres => fill_postgres(&database.url, work).await?,
        Engine::Sqlite => fill_sqlite(&database.url, work).await?,
    }
    let mut policy = QueuePolicy::named("default");
    policy.batch = work.batch;
    policy.published = published;
    let policy = Arc::new(policy);
    let mut claimer = store.claimer(Arc::clone(&policy));
    store.register_queues(&["default"]).await?;
    let meter = Meter::start(server).await?;
    let mut drained = 0;
    while let Claimed::Rows(claim) = claimer.claim().await? {
        let verdicts = vec![Verdict::Published { receipt: None }; claim.events.len()];
        let settled = store.settle(&policy, &claim, &verdicts).await?;
        ensure!(settled == Settled::Done, "a claim was lost");
        drained += claim.events.len();
    }
    let cost = meter.stop(server, drained as u64).await?;
    ensure!(drained == work.rows as usize, "the statements saw {drained} of {} rows", work.rows);
    store.close().await;
    Ok(cost)
}

/// The sketch of the protocol on PostgreSQL, which deletes what it has drained.
pub(crate) async fn sketch(server: &Server, work: &Workload) -> Result<Cost> {
    let database = server.fresh_database().await?;
    let mut db = PgConnection::connect(&database.url).await?;
    sqlx::raw_sql(include_str!("../sketch/schema.sql")).execute(&mut db).await?;
    sqlx::query(include_str!("../sketch/load.sql"))
        .bind(i32::try_from(work.rows)?)
        .bind(i64::from(work.keys))
        .bind(i32::try_from(work.pad())?)
        .execute(&mut db)
        .await?;
    sqlx::raw_sql("VACUUM ANALYZE tasks").execute(&mut db).await?;
    let meter = Meter::start(server).await?;
    let drained = drain_sketch(&mut db, work.batch).await?;
    let cost = meter.stop(server, drained).await?;
    ensure!(drained == u64::from(work.rows), "the sketch saw {drained} of {} rows", work.rows);
    Ok(cost)
}

async fn drain_sketch(db: &mut PgConnection, batch: u32) -> Result<u64> {
    let (mut token, mut from, mut drained) = (0_i64, 0_i64, 0);
    loop {
        token += 1;
        let claim = sqlx::query(include_str!("../sketch/claim.sql"));
        let rows = claim.bind(token).bind(i32::try_from(batch)?).bind(from).fetch_all(&mut *db).await?;
        if rows.is_empty() {
            return Ok(drained);
        }
        let mut places = Vec::with_capacity(rows.len());
        from = i64::MAX;
        for row in &rows {
            std::hint::black_box(row.try_get::<&str, _>(4)?);
            places.push(row.try_get::<&str, _>(1)?);
            from = from.min(row.try_get(0)?);
        }
        let settle = sqlx::query_scalar::<_, i32>(include_str!("../sketch/settle.sql"));
        let settled = settle.bind(token).bind(&places).fetch_one(&mut *db).await?;
        ensure!(settled == i32::try_from(rows.len())?, "{settled} of {} rows were settled", rows.len());
        drained += rows.len() as u64;
    }
}

/// A bare SQL loop on SQLite: claim in one transaction, delete in the next; no order, no lease.
pub(crate) async fn sql_loop(server: &Server, work: &Workload) -> Result<Cost> {
    let database = server.fresh_database().await?;
    in_process::open(server.engine(), &database).await?.close().await;
    fill_sqlite(&database.url, work).await?;
    open_sqlite(&database.url).await?.close().await?;
    let path = database.url.strip_prefix("sqlite://").context("not a file")?;
    let mut db = rusqlite::Connection::open(path)?;
    db.pragma_update(None, "synchronous", "NORMAL")?;
    let meter = Meter::start(server).await?;
    let drained = drain_sqlite(&mut db, work.batch)?;
    let cost = meter.stop(server, drained).await?;
    ensure!(drained == u64::from(work.rows), "the SQL loop saw {drained} of {} rows", work.rows);
    Ok(cost)
}

fn drain_sqlite(db: &mut rusqlite::Connection, batch: u32) -> Result<u64> {
    let (mut token, mut from, mut drained) = (0_i64, 0_i64, 0);
    loop {
        token += 1;
        let seqs = claim_sqlite(db, token, from, batch)?;
        if seqs.is_empty() {
            return Ok(drained);
        }
        from = seqs.iter().copied().min().unwrap_or(from);
        let tx = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let deleted = tx
            .prepare_cached(include_str!("../sketch/sqlite_settle.sql"))?
            .execute((serde_json::to_string(&seqs)?, token))?;
        tx.commit()?;
        ensure!(deleted == seqs.len(), "{deleted} of {} rows were deleted", seqs.len());
        drained += deleted as u64;
    }
}

fn claim_sqlite(db: &mut rusqlite::Connection, token: i64, from: i64, batch: u32) -> Result<Vec<i64>> {
    let tx = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let seqs = {
        let mut claim = tx.prepare_cached(include_str!("../sketch/sqlite_claim.sql"))?;
        let rows = claim.query_map((token, from, batch), |row| {
            for column in 1..=4 {
                std::hint::black_box(row.get_ref(column)?.as_str()?);
            }
            row.get(0)
        })?;
        rows.collect::<Result<Vec<i64>, _>>()?
    };
    tx.commit()?;
    Ok(seqs)
}
