-- Which events a consumer has processed: one row an event, written in the transaction that has the event's effect.
-- Works on any SQLite since 3.24. Times are milliseconds since 1970, UTC.
CREATE TABLE IF NOT EXISTS {table} (
    -- The event's identity as the consumer received it. An empty one would make every event a duplicate of the first,
    -- and a BLOB is equal to no TEXT.
    event_id     TEXT    NOT NULL PRIMARY KEY CHECK (typeof(event_id) = 'text' AND event_id <> ''),
    -- TEXT counts as later than every number: the purge would never take it.
    processed_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
        CHECK (typeof(processed_at) = 'integer')
) WITHOUT ROWID;

-- For the purge. Without it each of its batches reads the table from the start. It grows at its right end only, so an
-- insert pays little for it; a table with a rowid would have two trees as well.
CREATE INDEX IF NOT EXISTS {index} ON {name} (processed_at);
