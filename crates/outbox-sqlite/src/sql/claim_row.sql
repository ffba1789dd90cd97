UPDATE outbox_tasks SET status = 'PROCESSING', claim_token = ?2, updated_at = ?3 WHERE seq = ?1 AND status = 'PENDING'
