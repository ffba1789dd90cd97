UPDATE outbox_tasks
SET status = 'FAILED', claim_token = NULL, updated_at = ?3, available_at = NULL, settled_at = ?3, failed_at = ?3,
    last_error = ?4, retry_count = min(retry_count + ?5, 2147483647),
    lost_count = min(lost_count + ?6, 2147483647)
WHERE seq = ?1 AND claim_token = ?2
