SELECT seq, priority, lost_count, coalesce(octet_length(payload), 0)
FROM outbox_tasks INDEXED BY outbox_due
WHERE queue = ?1 AND settled_at IS NULL AND available_at < 9223372036854775807 AND available_at <= ?3
  AND status = 'PENDING'
ORDER BY available_at, seq
LIMIT ?2
