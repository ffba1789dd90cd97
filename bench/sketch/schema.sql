-- The least that claims in order per key and settles fenced on PostgreSQL: no due rows, no parked followers, no
-- transactions watched for late commits, no retries. A bound for speed, not a product.
CREATE SCHEMA sketch;
SET search_path = sketch;
CREATE TYPE status AS ENUM ('PENDING', 'PROCESSING', 'PUBLISHED', 'FAILED');
CREATE TABLE tasks (
  id uuid PRIMARY KEY DEFAULT gen_random_uuid(), seq bigint GENERATED ALWAYS AS IDENTITY,
  queue text NOT NULL DEFAULT 'default', aggregate_type text NOT NULL, aggregate_id text NOT NULL, event_type text,
  payload json, payload_bytes bytea, headers json, destination text, status status NOT NULL DEFAULT 'PENDING',
  retry_count int NOT NULL DEFAULT 0, max_retries int, lost_count int NOT NULL DEFAULT 0, last_error text, receipt text,
  available_at timestamptz, claim_token bigint, created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz,
  settled_at timestamptz, failed_at timestamptz) WITH (fillfactor = 50);
CREATE INDEX ON tasks (queue, seq) WHERE settled_at IS NULL AND available_at IS NULL;
CREATE INDEX ON tasks (queue, available_at, seq) WHERE settled_at IS NULL AND available_at IS NOT NULL;
CREATE INDEX ON tasks (queue, seq) WHERE failed_at IS NOT NULL;
CREATE INDEX ON tasks (settled_at) WHERE settled_at IS NOT NULL AND failed_at IS NULL;
CREATE TABLE queues (queue text PRIMARY KEY, paused bool NOT NULL DEFAULT false);
INSERT INTO queues VALUES ('default');
CREATE TABLE claims (
  token bigint PRIMARY KEY, queue text, claimed_at timestamptz DEFAULT now(), lease_until timestamptz, rows int);
CREATE TABLE blocked_keys (
  queue text, aggregate_type text, aggregate_id text, hold_after bigint,
  PRIMARY KEY (queue, aggregate_type, aggregate_id));

-- from_seq: the lowest seq of the last claim.
CREATE FUNCTION claim(of_queue text, new_token bigint, batch int, from_seq bigint)
RETURNS TABLE (claimed_seq bigint, claimed_ctid tid, claimed_type text, claimed_id text, claimed_payload json)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off
SET enable_mergejoin = off SET jit = off AS $$
DECLARE
  picked tid[];
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  PERFORM 1 FROM queues WHERE queues.queue = of_queue AND NOT paused FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  WITH scanned AS MATERIALIZED (
    SELECT t.ctid AS place, seq, aggregate_type AS a, aggregate_id AS i, status AS s, lost_count AS l,
      octet_length(payload::text) AS bytes
    FROM tasks t
    WHERE queue = of_queue AND seq >= from_seq AND settled_at IS NULL AND available_at IS NULL
    ORDER BY seq LIMIT batch + 1000),
  held AS MATERIALIZED (SELECT DISTINCT a, i FROM scanned WHERE s = 'PROCESSING'),
  free AS (
    SELECT place, sum(8 ^ least(l, 6)) OVER o AS weight, sum(bytes) OVER o AS total, row_number() OVER o AS nth
    FROM scanned c
    WHERE s = 'PENDING' AND NOT EXISTS (SELECT FROM held h WHERE h.a = c.a AND h.i = c.i)
      AND NOT EXISTS (
        SELECT FROM blocked_keys b
        WHERE b.queue = of_queue AND b.aggregate_type = c.a AND b.aggregate_id = c.i AND c.seq > b.hold_after)
    WINDOW o AS (ORDER BY seq))
  SELECT array_agg(place ORDER BY nth) FILTER (WHERE nth = 1 OR (weight <= batch AND total <= 16000000))
  INTO picked FROM free;
  IF picked IS NULL THEN
    RETURN;
  END IF;
  INSERT INTO claims (token, queue, lease_until, rows)
  VALUES (new_token, of_queue, now() + interval '60s', cardinality(picked));
  RETURN QUERY
    UPDATE tasks t SET status = 'PROCESSING', claim_token = new_token, updated_at = now()
    WHERE ctid = ANY (picked) AND status = 'PENDING'
    RETURNING seq, t.ctid, aggregate_type, aggregate_id, payload;
END $$;

-- Deletes the rows of a claim; how many, or -1 when the claim is gone.
CREATE FUNCTION settle(of_token bigint, places tid[]) RETURNS int LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
  deleted int;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  DELETE FROM claims WHERE token = of_token;
  IF NOT FOUND THEN
    RETURN -1;
  END IF;
  DELETE FROM tasks WHERE ctid = ANY (places) AND claim_token = of_token;
  GET DIAGNOSTICS deleted = ROW_COUNT;
  RETURN deleted;
END $$;
