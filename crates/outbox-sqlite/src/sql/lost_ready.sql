SELECT seq
FROM outbox_tasks INDEXED BY outbox_ready
WHERE queue = ?1 AND settled_at IS NULL AND available_at IS NULL AND seq BETWEEN ?2 AND ?3 AND claim_token = ?4
LIMIT ?5
