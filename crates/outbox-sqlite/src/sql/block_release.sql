-- By the row that the key waits for.
UPDATE outbox_blocked_keys SET released = 1
WHERE hold_after = ?1
  AND (queue, aggregate_type, aggregate_id) =
      (SELECT queue, aggregate_type, aggregate_id FROM outbox_tasks WHERE seq = ?1)
