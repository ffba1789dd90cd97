SELECT seq, claim_token
FROM outbox_tasks
WHERE queue = ?1 AND settled_at IS NULL AND status = 'PROCESSING' AND updated_at <= ?2
  AND NOT EXISTS (SELECT 1 FROM outbox_claims WHERE token = outbox_tasks.claim_token)
ORDER BY seq
