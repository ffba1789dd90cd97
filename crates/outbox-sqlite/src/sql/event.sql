SELECT id, aggregate_type, aggregate_id, event_type, payload, content_type, headers, destination, created_at,
       retry_count, max_retries, lost_count
FROM outbox_tasks
WHERE seq = ?1
