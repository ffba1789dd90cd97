DELETE FROM outbox_tasks WHERE seq IN (SELECT value FROM json_each(?1)) AND claim_token = ?2
