SELECT token, relay, task_count, seq_from, seq_to
FROM outbox_claims
WHERE queue = ?1 AND lease_until < ?2
ORDER BY lease_until
LIMIT 1
