UPDATE outbox_blocked_keys SET follow_from = ?4
WHERE queue = ?1 AND aggregate_type = ?2 AND aggregate_id = ?3
