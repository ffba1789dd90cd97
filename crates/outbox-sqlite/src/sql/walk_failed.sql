SELECT seq
FROM outbox_tasks INDEXED BY outbox_failed
WHERE queue = ?1 AND aggregate_type = ?2 AND aggregate_id = ?3 AND seq >= ?4 AND failed_at IS NOT NULL
ORDER BY seq
LIMIT 1
