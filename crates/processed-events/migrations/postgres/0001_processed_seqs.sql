-- The highest seq that a consumer has seen of each aggregate.
CREATE TABLE IF NOT EXISTS {table} (
    aggregate_type TEXT        NOT NULL,
    aggregate_id   TEXT        NOT NULL,
    seq            BIGINT      NOT NULL,
    seen_at        TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (aggregate_type, aggregate_id)
) WITH (fillfactor = 80); -- Every event of an aggregate updates its row: room for the new version beside the old one.
