-- The highest seq that a consumer has seen of each aggregate. Works on any SQLite since 3.24. Times are milliseconds
-- since 1970, UTC.
CREATE TABLE IF NOT EXISTS {table} (
    aggregate_type TEXT    NOT NULL CHECK (typeof(aggregate_type) = 'text'),
    aggregate_id   TEXT    NOT NULL CHECK (typeof(aggregate_id) = 'text'),
    seq            INTEGER NOT NULL CHECK (typeof(seq) = 'integer'),
    seen_at        INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    PRIMARY KEY (aggregate_type, aggregate_id)
) WITHOUT ROWID;
