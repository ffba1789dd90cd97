-- Waits for another transaction that has inserted the id and is still open.
INSERT INTO {table} (event_id, processed_at) VALUES ($1, now())
ON CONFLICT (event_id) DO NOTHING
