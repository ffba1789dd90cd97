//! Holds transactions of a PostgreSQL database at a chosen statement, so that a process can be killed there for certain.

use std::time::Duration;

use anyhow::{Result, ensure};
use sqlx::{Connection, PgConnection};
use tokio::time::{Instant, sleep};

/// A trigger that waits while the gate is closed.
pub(super) struct Gate {
    keeper: PgConnection,
}

const FUNCTION: &str = "CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN coalesce(new, old); END $$";

/// A settle, after the sink's answers and before it has changed anything.
pub(super) const SETTLE: &str =
    "CREATE TRIGGER gate BEFORE DELETE ON outbox_claims FOR EACH ROW EXECUTE FUNCTION gate()";

/// The commit of a consumer's transaction, asked for and not yet done.
pub(super) const COMMIT: &str = "CREATE CONSTRAINT TRIGGER gate AFTER INSERT OR UPDATE ON balances
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION gate()";

impl Gate {
    /// Puts an open gate at one of the places above.
    pub(super) async fn install(url: &str, place: &'static str) -> Result<Self> {
        let mut keeper = PgConnection::connect(url).await?;
        sqlx::query(FUNCTION).execute(&mut keeper).await?;
        sqlx::query(place).execute(&mut keeper).await?;
        Ok(Self { keeper })
    }

    /// Nobody passes any more, and nobody is on the way through.
    pub(super) async fn close(&mut self) -> Result<()> {
        sqlx::query("SELECT pg_advisory_lock(1)").execute(&mut self.keeper).await?;
        Ok(())
    }

    /// Who waits goes on, its client alive or not.
    pub(super) async fn open(&mut self) -> Result<()> {
        sqlx::query("SELECT pg_advisory_unlock(1)").execute(&mut self.keeper).await?;
        Ok(())
    }

    /// Waits until somebody waits at the closed gate.
    pub(super) async fn until_somebody_waits(&mut self, at_most: Duration) -> Result<()> {
        self.until(true, at_most).await
    }

    /// Rolls back the transactions that wait.
    pub(super) async fn turn_away(&mut self) -> Result<()> {
        let waiting = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks
            WHERE locktype = 'advisory' AND NOT granted
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        sqlx::query(waiting).execute(&mut self.keeper).await?;
        self.until(false, Duration::from_secs(30)).await
    }

    async fn until(&mut self, somebody: bool, at_most: Duration) -> Result<()> {
        let waiting = "SELECT count(*) FROM pg_locks
            WHERE locktype = 'advisory' AND NOT granted
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let end = Instant::now() + at_most;
        while (sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut self.keeper).await? > 0) != somebody {
            ensure!(Instant::now() < end, "somebody waiting at the gate is not {somebody} after {at_most:?}");
            sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }
}
