INSERT INTO outbox_queues (queue, paused) VALUES (?1, ?2) ON CONFLICT (queue) DO UPDATE SET paused = excluded.paused
