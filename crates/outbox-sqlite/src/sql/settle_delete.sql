DELETE FROM outbox_tasks WHERE seq = ?1 AND claim_token = ?2
