//! The shortest of the Rust writers, as README.md shows it: the function between the marks.

// docs: begin
use outbox_schema::{EnqueueError, Enqueued, NewEvent, enqueue};

pub(crate) async fn place_order(
    tx: &mut sqlx::PgTransaction<'_>,
    id: &str,
    total_cents: i64,
) -> Result<Enqueued, EnqueueError> {
    sqlx::query("INSERT INTO orders (id, total_cents) VALUES ($1, $2)")
        .bind(id)
        .bind(total_cents)
        .execute(&mut **tx)
        .await?;
    let event = NewEvent::new("Order", id)
        .event_type("OrderCreated")
        .idempotency_key(format!("order:{id}:created"))
        .json(&serde_json::json!({ "total_cents": total_cents }))?;
    enqueue(tx, event).await // in the caller's transaction; its commit is the event's
}
// docs: end
