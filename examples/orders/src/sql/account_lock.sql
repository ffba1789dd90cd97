INSERT INTO accounts (id, orders) VALUES ($1, 1)
ON CONFLICT (id) DO UPDATE SET orders = accounts.orders + 1
