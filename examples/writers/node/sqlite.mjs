// Places an order on SQLite: node sqlite.mjs FILE ORDER [--rollback]
import { createHash } from "node:crypto";
import Database from "better-sqlite3";

// docs: begin
/** The id that a key stands for: a UUIDv8 of a hash, the same in every language. */
function idempotentId(queue, key) {
  const digest = createHash("sha256").update(`${queue}\0${key}`).digest();
  digest[6] = (digest[6] & 0x0f) | 0x80;
  digest[8] = (digest[8] & 0x3f) | 0x80;
  return digest.toString("hex", 0, 16).replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

/** Inserts the order and tells of it, in the transaction at hand. null: it was told already. */
function placeOrder(db, orderId, totalCents) {
  db.prepare("INSERT INTO orders (id, total_cents) VALUES (?, ?)").run(orderId, totalCents);
  return tell(db, orderId, totalCents);
}

function tell(db, orderId, totalCents) {
  const id = idempotentId("default", `order:${orderId}:created`);
  const { changes } = db
    .prepare(
      `INSERT INTO outbox_tasks (id, aggregate_type, aggregate_id, event_type, payload)
       VALUES (?, 'Order', ?, 'OrderCreated', ?)
       ON CONFLICT (id) DO NOTHING`,
    )
    .run(id, orderId, JSON.stringify({ total_cents: totalCents }));
  return changes === 1 ? id : null;
}
// docs: end

class RolledBack extends Error {}

function main(path, orderId, rollback) {
  const db = new Database(path, { timeout: 30_000 });
  const order = db.transaction(() => {
    console.log("enqueued", placeOrder(db, orderId, 4200));
    console.log("again", tell(db, orderId, 4200));
    if (rollback) throw new RolledBack();
  });
  try {
    order.immediate();
  } catch (error) {
    if (!(error instanceof RolledBack)) throw error;
    console.log("rolled back");
  } finally {
    db.close();
  }
}

const [path, orderId, ...flags] = process.argv.slice(2);
main(path, orderId, flags.includes("--rollback"));
