-- Rows of the queue in claims: the ready ones among them are what a scan meets first.
SELECT coalesce(sum(task_count), 0) FROM outbox_claims WHERE queue = ?1
