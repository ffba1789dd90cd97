INSERT INTO {table} (event_id, processed_at)
VALUES (?, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
ON CONFLICT (event_id) DO NOTHING
