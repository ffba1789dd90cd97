SELECT id, event_type, lost_count, max_retries FROM outbox_tasks WHERE seq = ?1
