UPDATE outbox_blocked_keys SET hold_after = ?4, follow_from = ?4, released = 0
WHERE queue = ?1 AND aggregate_type = ?2 AND aggregate_id = ?3
