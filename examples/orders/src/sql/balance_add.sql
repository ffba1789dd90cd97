INSERT INTO balances (account_id, cents) VALUES ($1, $2)
ON CONFLICT (account_id) DO UPDATE SET cents = balances.cents + excluded.cents, applied = balances.applied + 1
