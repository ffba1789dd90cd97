-- applied and duplicates count deliveries, so that one can see what deduplication has done.
CREATE TABLE IF NOT EXISTS balances (
    account_id TEXT PRIMARY KEY,
    cents BIGINT NOT NULL,
    applied BIGINT NOT NULL DEFAULT 1,
    duplicates BIGINT NOT NULL DEFAULT 0
);
