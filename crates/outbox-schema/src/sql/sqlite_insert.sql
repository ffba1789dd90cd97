-- sqlite_row.sql once an event.
INSERT INTO {table} (id, queue, aggregate_type, aggregate_id, event_type, payload, content_type, headers,
    destination, max_retries, priority, available_at)
VALUES {rows}
ON CONFLICT (id) DO NOTHING
