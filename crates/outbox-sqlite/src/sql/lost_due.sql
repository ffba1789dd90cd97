SELECT seq
FROM outbox_tasks INDEXED BY outbox_due
WHERE queue = ?1 AND settled_at IS NULL AND available_at < 9223372036854775807 AND available_at <= ?2
  AND claim_token = ?3
LIMIT ?4
