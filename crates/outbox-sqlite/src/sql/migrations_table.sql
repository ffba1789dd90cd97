CREATE TABLE IF NOT EXISTS _outbox_migrations (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    -- 1: a binary that does not know this migration cannot work with the tables any more.
    breaking   INTEGER NOT NULL,
    applied_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
);
