//! The application of the demonstration: it writes an order and its event in one transaction.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use outbox_schema::{NewEvent, enqueue};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use tokio_util::sync::CancellationToken;

use super::sink::Committed;

/// Time between two orders.
const INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Orders {
    connection: SqliteConnection,
}

impl Orders {
    pub(super) async fn open(file: &Path) -> anyhow::Result<Self> {
        let options = SqliteConnectOptions::new().filename(file).busy_timeout(Duration::from_secs(5));
        let mut connection = options.connect().await.context("cannot open the demonstration's database")?;
        sqlx::query(include_str!("../../sql/demo_orders_create.sql")).execute(&mut connection).await?;
        Ok(Self { connection })
    }

    pub(super) async fn write_until(
        &mut self,
        shutdown: &CancellationToken,
        committed: &Committed,
    ) -> anyhow::Result<()> {
        let mut ticks = tokio::time::interval(INTERVAL);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                _ = ticks.tick() => {}
            }
            self.write(committed).await.context("cannot write an order")?;
        }
    }

    async fn write(&mut self, committed: &Committed) -> anyhow::Result<()> {
        let total_cents: i64 = rand::random_range(100..100_000);
        let mut transaction = self.connection.begin_with("BEGIN IMMEDIATE").await?;
        let order_id = sqlx::query(include_str!("../../sql/demo_orders_insert.sql"))
            .bind(total_cents)
            .execute(&mut *transaction)
            .await?
            .last_insert_rowid();
        let event = NewEvent::new("Order", order_id.to_string())
            .event_type("OrderCreated")
            .json(&serde_json::json!({ "order_id": order_id, "total_cents": total_cents }))?;
        let id = enqueue(&mut transaction, event).await?.id();
        // Before the commit: the relay may deliver it before this task goes on.
        committed.insert(id, Instant::now());
        transaction.commit().await?;
        Ok(())
    }
}
