SELECT hold_after, released, follow_from
FROM outbox_blocked_keys
WHERE queue = ?1 AND aggregate_type = ?2 AND aggregate_id = ?3
