SELECT EXISTS (SELECT 1 FROM outbox_claims WHERE queue = ?1)
