-- sqlite_row.sql once an id.
INSERT INTO {table} (event_id, processed_at)
VALUES {rows}
ON CONFLICT (event_id) DO NOTHING
RETURNING event_id
