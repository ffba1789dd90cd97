SELECT EXISTS (
    SELECT 1
    FROM outbox_tasks INDEXED BY outbox_parked
    WHERE queue = ?1 AND aggregate_type = ?2 AND aggregate_id = ?3 AND seq >= ?4
      AND settled_at IS NULL AND available_at IS NOT NULL
      AND available_at = 9223372036854775807 AND status = 'PENDING')
