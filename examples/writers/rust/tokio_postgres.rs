//! An order and its event with tokio-postgres.

// docs: begin
use outbox_schema::tokio_postgres::enqueue;
use outbox_schema::{Enqueued, NewEvent};

/// Inserts the order and tells of it, in the caller's transaction.
pub(crate) async fn place_order(
    tx: &tokio_postgres::Transaction<'_>,
    order_id: &str,
    total_cents: i64,
) -> Result<Enqueued, Box<dyn std::error::Error>> {
    tx.execute("INSERT INTO orders (id, total_cents) VALUES ($1, $2)", &[&order_id, &total_cents]).await?;
    let event = NewEvent::new("Order", order_id)
        .event_type("OrderCreated")
        .idempotency_key(format!("order:{order_id}:created"))
        .json(&serde_json::json!({ "total_cents": total_cents }))?;
    Ok(enqueue(tx, event).await?)
}
// docs: end
