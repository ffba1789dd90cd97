-- Followers that were parked while the queue was ordered.
UPDATE outbox_tasks SET available_at = NULL
WHERE seq IN (
    SELECT seq
    FROM outbox_tasks INDEXED BY outbox_parked
    WHERE queue = ?1 AND settled_at IS NULL AND available_at IS NOT NULL
      AND available_at = 9223372036854775807 AND status = 'PENDING'
    LIMIT ?2)
