INSERT INTO demo_orders (total_cents) VALUES (?)
