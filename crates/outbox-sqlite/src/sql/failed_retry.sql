-- last_error stays, and is set where it is missing: it tells a retried row from a delayed one.
UPDATE outbox_tasks
SET status = 'PENDING', retry_count = 0, lost_count = 0, available_at = ?2, updated_at = ?2, settled_at = NULL,
    failed_at = NULL, last_error = coalesce(last_error, 'retried by an operator')
WHERE seq = ?1 AND failed_at IS NOT NULL
