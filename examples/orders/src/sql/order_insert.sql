INSERT INTO orders (id, account_id, amount_cents) VALUES ($1, $2, $3)
