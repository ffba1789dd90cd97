SELECT t.seq
FROM outbox_blocked_keys AS b CROSS JOIN outbox_tasks AS t INDEXED BY outbox_parked
    ON t.queue = b.queue AND t.aggregate_type = b.aggregate_type AND t.aggregate_id = b.aggregate_id
WHERE b.queue = ?1 AND t.seq >= b.follow_from AND t.settled_at IS NULL AND t.available_at IS NOT NULL
  AND t.available_at = 9223372036854775807 AND t.claim_token = ?2
LIMIT ?3
