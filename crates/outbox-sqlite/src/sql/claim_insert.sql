INSERT INTO outbox_claims (token, queue, relay, claimed_at, lease_until, task_count, seq_from, seq_to)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
