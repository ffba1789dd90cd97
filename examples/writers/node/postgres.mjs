// Places an order on PostgreSQL: node postgres.mjs URL ORDER [--rollback]
import pg from "pg";

// docs: begin
/** Inserts the order and tells of it, in the client's transaction. null: it was told already. */
async function placeOrder(client, orderId, totalCents) {
  await client.query("INSERT INTO orders (id, total_cents) VALUES ($1, $2)", [orderId, totalCents]);
  return tell(client, orderId, totalCents);
}

async function tell(client, orderId, totalCents) {
  const { rows } = await client.query(
    `SELECT outbox_enqueue('Order', $1, $2,
       event_type => 'OrderCreated', idempotency_key => $3) AS id`,
    [orderId, JSON.stringify({ total_cents: totalCents }), `order:${orderId}:created`],
  );
  return rows[0].id;
}
// docs: end

async function main(url, orderId, rollback) {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    await client.query("BEGIN");
    console.log("enqueued", await placeOrder(client, orderId, 4200));
    console.log("again", await tell(client, orderId, 4200));
    await client.query(rollback ? "ROLLBACK" : "COMMIT");
    if (rollback) console.log("rolled back");
  } finally {
    await client.end();
  }
}

const [url, orderId, ...flags] = process.argv.slice(2);
await main(url, orderId, flags.includes("--rollback"));
