SELECT
    (SELECT count(*) FROM (
        SELECT 1 FROM outbox_tasks INDEXED BY outbox_ready
        WHERE queue = ?1 AND settled_at IS NULL AND available_at IS NULL LIMIT ?2)),
    (SELECT count(*) FROM (
        SELECT 1 FROM outbox_tasks INDEXED BY outbox_parked
        WHERE queue = ?1 AND settled_at IS NULL AND available_at IS NOT NULL LIMIT ?2)),
    (SELECT coalesce(sum(task_count), 0) FROM outbox_claims WHERE queue = ?1),
    (SELECT count(*) FROM (
        SELECT 1 FROM outbox_tasks INDEXED BY outbox_failed WHERE queue = ?1 AND failed_at IS NOT NULL LIMIT ?2)),
    (SELECT count(*) FROM (SELECT 1 FROM outbox_blocked_keys WHERE queue = ?1 LIMIT ?2)),
    (SELECT created_at FROM outbox_tasks INDEXED BY outbox_ready
        WHERE queue = ?1 AND settled_at IS NULL AND available_at IS NULL AND status = 'PENDING'
        ORDER BY seq LIMIT 1),
    coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'outbox_tasks'), 0),
    coalesce((SELECT paused FROM outbox_queues WHERE queue = ?1), 0),
    CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)
