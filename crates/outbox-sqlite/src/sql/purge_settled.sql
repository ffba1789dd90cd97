DELETE FROM outbox_tasks
WHERE seq IN (
    SELECT seq
    FROM outbox_tasks INDEXED BY outbox_settled
    WHERE queue = ?1 AND settled_at IS NOT NULL AND failed_at IS NULL AND settled_at < ?2
    ORDER BY settled_at
    LIMIT ?3)
