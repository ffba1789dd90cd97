-- One probe of each index a queue, however many rows it has.
SELECT min(queue) FROM (
    SELECT * FROM (SELECT queue FROM outbox_queues WHERE queue > ?1 ORDER BY queue LIMIT 1)
    UNION ALL SELECT * FROM (
        SELECT queue FROM outbox_tasks INDEXED BY outbox_ready
        WHERE queue > ?1 AND settled_at IS NULL AND available_at IS NULL ORDER BY queue LIMIT 1)
    UNION ALL SELECT * FROM (
        SELECT queue FROM outbox_tasks INDEXED BY outbox_parked
        WHERE queue > ?1 AND settled_at IS NULL AND available_at IS NOT NULL ORDER BY queue LIMIT 1)
    UNION ALL SELECT * FROM (
        SELECT queue FROM outbox_tasks INDEXED BY outbox_failed
        WHERE queue > ?1 AND failed_at IS NOT NULL ORDER BY queue LIMIT 1))
