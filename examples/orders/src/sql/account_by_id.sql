SELECT orders, (SELECT CAST(sum(amount_cents) AS BIGINT) FROM orders WHERE account_id = accounts.id)
FROM accounts WHERE id = $1
