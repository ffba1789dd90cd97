insert into {schema}.outbox_queues (queue, paused) values ($1, $2)
on conflict (queue) do update set paused = excluded.paused
