//! What a run cost: time, CPU of both sides, and what PostgreSQL wrote.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use outbox_tests::process::cpu_time;
use sqlx::{Connection, PgConnection};

use crate::engine::Server;
use crate::report::Report;

/// What one run cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Events a second.
    pub(crate) rate: f64,
    /// Microseconds an event of this process and of those that it has run: the relay, or a loop.
    client_cpu: f64,
    /// Of the database's server.
    server: Option<ServerCost>,
}

#[derive(Clone, Copy, Debug)]
struct ServerCost {
    /// Microseconds an event.
    cpu: f64,
    /// Bytes an event.
    wal: f64,
}

/// Runs from its start to its stop.
pub(crate) struct Meter {
    start: Instant,
    client_cpu: Duration,
    server: Option<(Duration, i64)>,
}

impl Meter {
    pub(crate) async fn start(server: &Server) -> Result<Self> {
        let used = server_use(server).await?;
        Ok(Self { server: used, client_cpu: cpu_time(&[rustix::process::getpid()])?, start: Instant::now() })
    }

    /// What so many events cost.
    pub(crate) async fn stop(self, server: &Server, events: u64) -> Result<Cost> {
        let elapsed = self.start.elapsed();
        let client_cpu = cpu_time(&[rustix::process::getpid()])? - self.client_cpu;
        let events = events as f64;
        let used =
            self.server.zip(server_use(server).await?).map(|((cpu, wal), (cpu_now, wal_now))| ServerCost {
                cpu: (cpu_now - cpu).as_secs_f64() * 1e6 / events,
                wal: (wal_now - wal) as f64 / events,
            });
        Ok(Cost {
            rate: events / elapsed.as_secs_f64(),
            client_cpu: client_cpu.as_secs_f64() * 1e6 / events,
            server: used,
        })
    }
}

/// CPU time of all the server's processes, and where its WAL ends.
async fn server_use(server: &Server) -> Result<Option<(Duration, i64)>> {
    let Server::Postgres(server) = server else { return Ok(None) };
    let mut db = PgConnection::connect(&server.url("postgres")).await?;
    let wal = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
    let wal = sqlx::query_scalar(wal).fetch_one(&mut db).await?;
    db.close().await?;
    Ok(Some((server.cpu_time()?, wal)))
}

/// Rates of some runs.
pub(crate) fn rates(costs: &[Cost]) -> Vec<f64> {
    costs.iter().map(|cost| cost.rate).collect()
}

/// All figures of a contender.
pub(crate) fn describe(report: &mut Report, name: &str, costs: &[Cost]) {
    report.line(name, "events/s", rates(costs));
    let client_cpu = costs.iter().map(|cost| cost.client_cpu).collect();
    report.line(format!("{name}: its own CPU"), "µs/event", client_cpu);
    let server =
        |pick: fn(ServerCost) -> f64| costs.iter().filter_map(|cost| cost.server.map(pick)).collect();
    report.line(format!("{name}: the database's CPU"), "µs/event", server(|cost| cost.cpu));
    report.line(format!("{name}: WAL"), "bytes/event", server(|cost| cost.wal));
}

/// How a table's updates went.
pub(crate) struct TableUse {
    /// Share of updates that touched no index.
    pub(crate) hot: f64,
    /// Dead rows left behind, autovacuum at work.
    pub(crate) dead: f64,
}

/// Of the outbox's tasks, once the sessions that worked on them have ended.
pub(crate) async fn table_use(url: &str) -> Result<TableUse> {
    let mut db = PgConnection::connect(url).await?;
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                  AND backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let ended = async {
        while sqlx::query_scalar::<_, i64>(others).fetch_one(&mut db).await? > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(Duration::from_secs(30), ended).await.context("sessions do not end")??;
    let figures = "SELECT n_tup_hot_upd::float8 / greatest(n_tup_upd, 1), n_dead_tup::float8 \
                   FROM pg_stat_user_tables WHERE relname = 'outbox_tasks'";
    let (hot, dead) = sqlx::query_as(figures).fetch_one(&mut db).await?;
    Ok(TableUse { hot, dead })
}
