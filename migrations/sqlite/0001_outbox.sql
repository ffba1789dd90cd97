-- The tables of the transactional outbox on SQLite. Works on any SQLite since 3.24, written to from any language.
-- Times are milliseconds since 1970, UTC. 9223372036854775807 stands for "infinity".

-- One row an event. The payload comes last, so that whoever looks at the other columns never reads it.
CREATE TABLE outbox_tasks (
    -- Insertion order; never used twice, even after the newest row was deleted.
    seq            INTEGER PRIMARY KEY AUTOINCREMENT,
    -- Identity of the event and what consumers deduplicate on: a UUID as text, in either case.
    id             TEXT    NOT NULL COLLATE NOCASE UNIQUE DEFAULT (lower(
                       hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-' ||
                       substr('89ab', 1 + (random() & 3), 1) || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))),
    -- The pipeline that delivers it.
    queue          TEXT    NOT NULL DEFAULT 'default',
    -- Together the ordering key.
    aggregate_type TEXT    NOT NULL,
    aggregate_id   TEXT    NOT NULL,
    event_type     TEXT,
    status         TEXT    NOT NULL DEFAULT 'PENDING',
    -- NULL: ready. A time: delayed, or in backoff, until then. Infinity: waits behind its key's head.
    available_at   INTEGER,
    -- Which claim holds the row while it is PROCESSING.
    claim_token    INTEGER,
    -- Failures charged to the event, and how many more it may have; NULL: the queue's setting.
    retry_count    INTEGER NOT NULL DEFAULT 0,
    max_retries    INTEGER,
    -- Claims holding the row whose lease ran out.
    lost_count     INTEGER NOT NULL DEFAULT 0,
    -- Only for queues with ordering = "none".
    priority       INTEGER NOT NULL DEFAULT 0,
    created_at     INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    updated_at     INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    -- Set when PUBLISHED or FAILED; failed_at when FAILED and not discarded.
    settled_at     INTEGER,
    failed_at      INTEGER,
    -- Why it failed, and where it went.
    last_error     TEXT,
    receipt        TEXT,
    content_type   TEXT,
    -- A JSON object of strings.
    headers        TEXT,
    -- Overrides the queue's destination.
    destination    TEXT,
    -- TEXT: JSON (other text is delivered as text/plain). BLOB: bytes. NULL: a tombstone.
    payload,

    CONSTRAINT outbox_id_must_be_a_uuid CHECK (typeof(id) = 'text' AND id GLOB
        '[0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f]-' ||
        '[0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f]-[0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f]-' ||
        '[0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f]-[0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f]' ||
        '[0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f][0-9A-Fa-f]'),
    CONSTRAINT outbox_queue_must_be_a_name CHECK (typeof(queue) = 'text' AND queue <> ''),
    CONSTRAINT outbox_aggregate_must_be_text CHECK (typeof(aggregate_type) = 'text' AND typeof(aggregate_id) = 'text'),
    CONSTRAINT outbox_event_type_must_be_text CHECK (typeof(event_type) IN ('text', 'null')),
    CONSTRAINT outbox_status_unknown CHECK (status IN ('PENDING', 'PROCESSING', 'PUBLISHED', 'FAILED')),
    CONSTRAINT outbox_times_must_be_integer_milliseconds CHECK (
        typeof(available_at) IN ('integer', 'null') AND typeof(created_at) = 'integer' AND typeof(updated_at) = 'integer'
        AND typeof(settled_at) IN ('integer', 'null') AND typeof(failed_at) IN ('integer', 'null')),
    CONSTRAINT outbox_counts_must_be_whole_numbers_from_0 CHECK (
        typeof(retry_count) = 'integer' AND retry_count >= 0 AND typeof(lost_count) = 'integer' AND lost_count >= 0
        AND (max_retries IS NULL OR typeof(max_retries) = 'integer' AND max_retries >= 0)),
    CONSTRAINT outbox_priority_must_be_a_small_integer CHECK (typeof(priority) = 'integer' AND priority BETWEEN -32768 AND 32767),
    CONSTRAINT outbox_text_columns_must_be_text CHECK (
        typeof(content_type) IN ('text', 'null') AND typeof(headers) IN ('text', 'null')
        AND typeof(destination) IN ('text', 'null')),
    CONSTRAINT outbox_payload_must_be_text_blob_or_null CHECK (typeof(payload) IN ('text', 'blob', 'null'))
);

-- No index names a column that a claim changes (status, claim_token), so a claim rewrites rows and no index.
CREATE INDEX outbox_ready ON outbox_tasks (queue, seq)
    WHERE settled_at IS NULL AND available_at IS NULL;
CREATE INDEX outbox_due ON outbox_tasks (queue, available_at, seq)
    WHERE settled_at IS NULL AND available_at < 9223372036854775807;
CREATE INDEX outbox_parked ON outbox_tasks (queue, aggregate_type, aggregate_id, seq)
    WHERE settled_at IS NULL AND available_at IS NOT NULL;
CREATE INDEX outbox_urgent ON outbox_tasks (queue, priority DESC, seq)
    WHERE settled_at IS NULL AND available_at IS NULL AND priority > 0;
CREATE INDEX outbox_failed ON outbox_tasks (queue, aggregate_type, aggregate_id, seq)
    WHERE failed_at IS NOT NULL;
CREATE INDEX outbox_settled ON outbox_tasks (queue, settled_at)
    WHERE settled_at IS NOT NULL AND failed_at IS NULL;

-- A time that has passed means ready: the row then has its place by seq among the ready rows of its key.
CREATE TRIGGER outbox_past_is_ready AFTER INSERT ON outbox_tasks
    WHEN NEW.available_at <= CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
BEGIN
    UPDATE outbox_tasks SET available_at = NULL WHERE seq = NEW.seq;
END;

-- One row a queue: the pause switch.
CREATE TABLE outbox_queues (
    queue      TEXT    NOT NULL PRIMARY KEY CHECK (typeof(queue) = 'text' AND queue <> ''),
    paused     INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
    created_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER))
);
INSERT INTO outbox_queues (queue) VALUES ('default');

-- One row a batch in flight. The lease belongs to the claim; deleting its row is what owns the right to settle.
-- seq_from and seq_to are the range of its ready rows: how the sweep finds them by index.
CREATE TABLE outbox_claims (
    token       INTEGER PRIMARY KEY,
    queue       TEXT    NOT NULL,
    relay       TEXT    NOT NULL,
    claimed_at  INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    task_count  INTEGER NOT NULL,
    seq_from    INTEGER,
    seq_to      INTEGER
);

-- Keys whose head is retried: rows of the key with seq > hold_after wait. No follower, retried or FAILED row beyond
-- hold_after lies below follow_from.
CREATE TABLE outbox_blocked_keys (
    queue          TEXT    NOT NULL,
    aggregate_type TEXT    NOT NULL,
    aggregate_id   TEXT    NOT NULL,
    hold_after     INTEGER NOT NULL,
    released       INTEGER NOT NULL DEFAULT 0 CHECK (released IN (0, 1)),
    follow_from    INTEGER NOT NULL,
    reason         TEXT,
    since          INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    PRIMARY KEY (queue, aggregate_type, aggregate_id)
);
CREATE INDEX outbox_released ON outbox_blocked_keys (queue, since) WHERE released = 1;

-- Rows in a claim, with the claim's lease: for people who look for expired leases in SQL.
CREATE VIEW outbox_in_flight AS
    SELECT t.*, c.relay, c.claimed_at, c.lease_until
    FROM outbox_tasks AS t JOIN outbox_claims AS c ON c.token = t.claim_token
    WHERE t.settled_at IS NULL;
