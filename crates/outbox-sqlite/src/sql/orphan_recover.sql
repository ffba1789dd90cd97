UPDATE outbox_tasks
SET status = 'PENDING', claim_token = NULL, updated_at = ?3,
    available_at = CASE WHEN available_at < 9223372036854775807 THEN ?3 ELSE available_at END
WHERE seq = ?1 AND settled_at IS NULL AND status = 'PROCESSING' AND claim_token IS ?2 AND updated_at <= ?4
  AND NOT EXISTS (SELECT 1 FROM outbox_claims WHERE token = outbox_tasks.claim_token)
