insert into {schema}.outbox_queues (queue) select distinct q from unnest($1::text[]) q
where not exists (select from {schema}.outbox_queues where queue = q)
on conflict do nothing
