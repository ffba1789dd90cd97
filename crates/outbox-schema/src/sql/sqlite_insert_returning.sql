-- As sqlite_insert.sql, and says which ids are new.
INSERT INTO {table} (id, queue, aggregate_type, aggregate_id, event_type, payload, content_type, headers,
    destination, max_retries, priority, available_at)
VALUES {rows}
ON CONFLICT (id) DO NOTHING
RETURNING id
