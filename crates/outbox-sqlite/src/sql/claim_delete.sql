DELETE FROM outbox_claims WHERE token = ?1 RETURNING task_count
