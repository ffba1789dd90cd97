DELETE FROM outbox_blocked_keys
WHERE queue = ?1 AND NOT EXISTS (
    SELECT 1
    FROM outbox_tasks INDEXED BY outbox_parked
    WHERE queue = ?1 AND settled_at IS NULL AND available_at IS NOT NULL AND available_at = 9223372036854775807)
