-- Which events a consumer has processed: one row an event, written in the transaction that has the event's effect.
CREATE TABLE IF NOT EXISTS {table} (
    -- The event's identity as the consumer received it. An empty one would make every event a duplicate of the first.
    event_id     TEXT        PRIMARY KEY CHECK (event_id <> ''),
    processed_at TIMESTAMPTZ NOT NULL DEFAULT now()
);

-- For the purge. Without it each of its batches reads the table from the start, past what the batches before have
-- deleted. It grows at its right end only, so an insert pays little for it.
CREATE INDEX IF NOT EXISTS {index} ON {table} (processed_at);
