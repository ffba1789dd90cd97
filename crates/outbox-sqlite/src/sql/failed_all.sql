SELECT seq, id, queue, aggregate_type, aggregate_id, event_type, retry_count, lost_count, last_error, failed_at
FROM outbox_tasks INDEXED BY outbox_failed
WHERE failed_at IS NOT NULL
ORDER BY failed_at DESC, seq DESC
LIMIT ?1
