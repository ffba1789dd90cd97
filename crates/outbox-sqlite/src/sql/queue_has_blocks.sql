SELECT EXISTS (SELECT 1 FROM outbox_blocked_keys WHERE queue = ?1)
