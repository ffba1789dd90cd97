SELECT aggregate_type, aggregate_id, follow_from
FROM outbox_blocked_keys INDEXED BY outbox_released
WHERE queue = ?1 AND released = 1
ORDER BY since
LIMIT ?2
