UPDATE outbox_tasks
SET status = 'PUBLISHED', settled_at = ?3, updated_at = ?3, receipt = ?4, claim_token = NULL, available_at = NULL
WHERE seq = ?1 AND claim_token = ?2
