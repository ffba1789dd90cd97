-- ?2: a JSON list of ids.
SELECT seq, id, queue, aggregate_type, aggregate_id, event_type, retry_count, lost_count, last_error, failed_at
FROM outbox_tasks
WHERE id IN (SELECT value FROM json_each(?2)) AND failed_at IS NOT NULL
ORDER BY failed_at DESC, seq DESC
LIMIT ?1
