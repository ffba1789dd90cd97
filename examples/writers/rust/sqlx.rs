//! Orders and their events with sqlx; SQLite is the same with its own types.

// docs: begin
use std::time::Duration;

use outbox_schema::{EnqueueError, Enqueued, NewEvent, enqueue, enqueue_all};

#[derive(serde::Serialize)]
struct OrderCreated {
    total_cents: i64,
}

/// Inserts the order and tells of it, in the caller's transaction.
pub(crate) async fn place_order(
    tx: &mut sqlx::PgTransaction<'_>,
    order_id: &str,
    total_cents: i64,
) -> Result<Enqueued, EnqueueError> {
    sqlx::query("INSERT INTO orders (id, total_cents) VALUES ($1, $2)")
        .bind(order_id)
        .bind(total_cents)
        .execute(&mut **tx)
        .await?;
    let event = NewEvent::new("Order", order_id)
        .event_type("OrderCreated")
        .header("tenant", "acme")
        .idempotency_key(format!("order:{order_id}:created"))
        .json(&OrderCreated { total_cents })?;
    enqueue(tx, event).await
}

/// Many events in one statement (a further one for each 1,000 events or 32 MiB).
pub(crate) async fn remind(
    tx: &mut sqlx::PgTransaction<'_>,
    order_ids: &[&str],
) -> Result<Vec<Enqueued>, EnqueueError> {
    let reminders = order_ids.iter().map(|order_id| {
        // The delay counts by the database's clock.
        NewEvent::new("Order", *order_id).event_type("PaymentDue").delay(Duration::from_secs(24 * 60 * 60))
    });
    enqueue_all(tx, reminders).await
}
// docs: end
