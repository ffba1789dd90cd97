UPDATE outbox_tasks
SET status = 'PENDING', claim_token = NULL, updated_at = ?3, available_at = ?4, last_error = ?5,
    retry_count = min(retry_count + ?6, 2147483647)
WHERE seq = ?1 AND claim_token = ?2
