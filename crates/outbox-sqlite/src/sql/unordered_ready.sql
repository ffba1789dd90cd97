SELECT seq, priority, lost_count, coalesce(octet_length(payload), 0)
FROM outbox_tasks INDEXED BY outbox_ready
WHERE queue = ?1 AND settled_at IS NULL AND available_at IS NULL AND status = 'PENDING'
ORDER BY seq
LIMIT ?2
