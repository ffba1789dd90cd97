UPDATE outbox_tasks SET failed_at = NULL, updated_at = ?2, receipt = ?3 WHERE seq = ?1 AND failed_at IS NOT NULL
