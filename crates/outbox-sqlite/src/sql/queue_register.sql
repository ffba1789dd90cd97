INSERT INTO outbox_queues (queue) VALUES (?1) ON CONFLICT (queue) DO NOTHING
