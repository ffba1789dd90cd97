CREATE TABLE IF NOT EXISTS accounts (
    id TEXT PRIMARY KEY,
    orders BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS orders (
    id TEXT PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id),
    amount_cents BIGINT NOT NULL CHECK (amount_cents > 0)
);
CREATE INDEX IF NOT EXISTS orders_account ON orders (account_id);
