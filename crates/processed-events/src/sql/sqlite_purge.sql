-- The first parameter is in milliseconds.
DELETE FROM {table} WHERE event_id IN (
    SELECT event_id FROM {table}
    WHERE processed_at < CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - ?
    ORDER BY processed_at
    LIMIT ?)
