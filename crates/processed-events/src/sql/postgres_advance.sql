-- Locks the aggregate's row whether or not it is updated, until the transaction ends.
INSERT INTO {table} AS kept (aggregate_type, aggregate_id, seq, seen_at) VALUES ($1, $2, $3, now())
ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET seq = excluded.seq, seen_at = excluded.seen_at
WHERE kept.seq < excluded.seq
