SELECT account_id, amount_cents FROM orders WHERE id = $1
