UPDATE outbox_tasks SET status = 'PROCESSING', claim_token = ?1
WHERE seq IN (
  SELECT seq FROM outbox_tasks
  WHERE queue = 'default' AND seq >= ?2 AND settled_at IS NULL AND available_at IS NULL AND status = 'PENDING'
  ORDER BY seq LIMIT ?3)
RETURNING seq, id, aggregate_type, aggregate_id, payload
