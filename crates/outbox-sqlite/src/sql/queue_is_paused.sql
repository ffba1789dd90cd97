SELECT paused FROM outbox_queues WHERE queue = ?1
