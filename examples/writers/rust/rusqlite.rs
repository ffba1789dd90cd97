//! An order and its event with rusqlite.

// docs: begin
use outbox_schema::rusqlite::enqueue;
use outbox_schema::{Enqueued, NewEvent};

/// Inserts the order and tells of it, in the caller's transaction.
pub(crate) fn place_order(
    tx: &rusqlite::Transaction<'_>,
    order_id: &str,
    total_cents: i64,
) -> Result<Enqueued, Box<dyn std::error::Error>> {
    tx.execute("INSERT INTO orders (id, total_cents) VALUES (?, ?)", (order_id, total_cents))?;
    let event = NewEvent::new("Order", order_id)
        .event_type("OrderCreated")
        .idempotency_key(format!("order:{order_id}:created"))
        .json(&serde_json::json!({ "total_cents": total_cents }))?;
    Ok(enqueue(tx, event)?)
}
// docs: end
