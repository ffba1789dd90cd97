//! The consumer's effect: what each account has ordered for, each event counted once.

use anyhow::Result;
use processed_events::{Outcome, ProcessedEvents};

use crate::database::{Database, on_engine};
use crate::event::Event;

/// The table of balances, in the consumer's own database.
#[derive(Clone, Debug)]
pub(crate) struct Balances {
    database: Database,
    /// `None` counts every delivery, to show what then goes wrong.
    processed: Option<ProcessedEvents>,
}

/// One account's balance, and how many deliveries made it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Balance {
    pub(crate) cents: i64,
    /// Events that were added.
    pub(crate) applied: i64,
    /// Deliveries that were not, because their event had been added before.
    pub(crate) duplicates: i64,
}

impl Balances {
    /// The balances in this database; the tables are made when they are missing.
    pub(crate) async fn open(url: &str, deduplicate: bool) -> Result<Self> {
        let database = Database::open(url, include_str!("sql/consumer_tables.sql")).await?;
        let processed = if deduplicate { Some(ProcessedEvents::default()) } else { None };
        if let Some(processed) = &processed {
            on_engine!(&database, Database, pool => processed.migrate(&mut *pool.acquire().await?).await?);
        }
        Ok(Self { database, processed })
    }

    /// Adds an event's amount to its account, unless this event has been here before. The mark and the sum commit
    /// together: killed at any point, this has either happened, and the event's next delivery is a duplicate, or it
    /// has not, and its next delivery is the first.
    pub(crate) async fn apply(&self, event: &Event) -> Result<()> {
        let Some(order) = event.order_placed()? else { return Ok(()) };
        let mut tx = self.database.begin().await?;
        on_engine!(&mut tx, Tx, tx => {
            let outcome = match &self.processed {
                Some(processed) => processed.once(tx, event.meta.id).await?,
                None => Outcome::First,
            };
            let statement = match outcome {
                Outcome::First => sqlx::query(include_str!("sql/balance_add.sql")).bind(&event.meta.aggregate_id).bind(order.amount_cents),
                Outcome::Duplicate => sqlx::query(include_str!("sql/balance_duplicate.sql")).bind(&event.meta.aggregate_id),
            };
            statement.execute(&mut **tx).await?;
        });
        tx.commit().await?;
        tracing::debug!(event = %event.meta.id, order = %order.order_id, "processed");
        Ok(())
    }

    /// What an account stands at; nothing where no event has come.
    pub(crate) async fn of(&self, account: &str) -> Result<Balance> {
        let row: Option<(i64, i64, i64)> = on_engine!(&self.database, Database, pool => {
            sqlx::query_as(include_str!("sql/balance_by_account.sql")).bind(account).fetch_optional(pool).await?
        });
        let (cents, applied, duplicates) = row.unwrap_or_default();
        Ok(Balance { cents, applied, duplicates })
    }
}
