DELETE FROM outbox_tasks WHERE seq = ?1 AND failed_at IS NOT NULL AND failed_at < ?2
