-- The business table of these programs, on PostgreSQL and SQLite.
CREATE TABLE orders (id TEXT PRIMARY KEY, total_cents BIGINT NOT NULL);
