SELECT seq
FROM outbox_tasks INDEXED BY outbox_failed
WHERE queue = ?1 AND failed_at IS NOT NULL AND failed_at < ?2
LIMIT ?3
