INSERT INTO {table} AS kept (aggregate_type, aggregate_id, seq, seen_at)
VALUES (?, ?, ?, CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET seq = excluded.seq, seen_at = excluded.seen_at
WHERE kept.seq < excluded.seq
