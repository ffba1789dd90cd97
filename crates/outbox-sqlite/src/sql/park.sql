UPDATE outbox_tasks SET available_at = 9223372036854775807, updated_at = ?2 WHERE seq = ?1 AND status = 'PENDING'
