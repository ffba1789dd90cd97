-- The queues are found by jumping from one name to the next in the indexes, so that rows in a queue that nobody has
-- registered show too. $1 is where counting stops: a big backlog would be read whole, again and again. Ready rows beyond
-- it are taken to lie as densely among the seqs as those that were counted.
with recursive
ready as (
  (select queue from {schema}.outbox_tasks where settled_at is null and available_at is null order by queue limit 1)
  union all
  select (select t.queue from {schema}.outbox_tasks t
    where settled_at is null and available_at is null and t.queue > ready.queue order by t.queue limit 1)
  from ready where ready.queue is not null),
parked as (
  (select queue from {schema}.outbox_tasks where settled_at is null and available_at is not null order by queue limit 1)
  union all
  select (select t.queue from {schema}.outbox_tasks t
    where settled_at is null and available_at is not null and t.queue > parked.queue order by t.queue limit 1)
  from parked where parked.queue is not null),
failed as (
  (select queue from {schema}.outbox_tasks where failed_at is not null order by queue limit 1)
  union all
  select (select t.queue from {schema}.outbox_tasks t
    where failed_at is not null and t.queue > failed.queue order by t.queue limit 1)
  from failed where failed.queue is not null),
names as (
  select queue from {schema}.outbox_queues union select queue from ready union select queue from parked
  union select queue from failed)
select n.queue,
  r.pending + p.pending + case when r.counted < $1 then 0
    else ((s.last_seq - r.newest)::numeric * r.counted / (r.newest - r.oldest + 1))::bigint end as pending,
  r.processing + p.processing as processing,
  (select count(*) from (
    select from {schema}.outbox_tasks t where t.queue = n.queue and failed_at is not null limit $1) f) as failed,
  (select count(*) from (
    select from {schema}.outbox_blocked_keys b where b.queue = n.queue limit $1) b) as blocked_keys,
  greatest(
    (select extract(epoch from clock_timestamp() - created_at)::float8 from {schema}.outbox_tasks t
      where t.queue = n.queue and settled_at is null and available_at is null and status = 'PENDING'
      order by seq limit 1),
    -- a delayed or retried row ages from when it was due
    (select extract(epoch from clock_timestamp() - available_at)::float8 from {schema}.outbox_tasks t
      where t.queue = n.queue and settled_at is null and available_at < 'infinity' and available_at <= now()
        and status = 'PENDING'
      order by available_at, seq limit 1)) as oldest,
  s.last_seq,
  coalesce((select paused from {schema}.outbox_queues q where q.queue = n.queue), false) as paused
from names n
cross join (select case when is_called then last_value else 0 end last_seq from {schema}.outbox_tasks_seq_seq) s
cross join lateral (
  select count(*) filter (where status = 'PENDING') pending, count(*) filter (where status = 'PROCESSING') processing,
    count(*) counted, min(seq) oldest, max(seq) newest
  from (select status, seq from {schema}.outbox_tasks t
    where t.queue = n.queue and settled_at is null and available_at is null order by seq limit $1) x) r
cross join lateral (
  select count(*) filter (where status = 'PENDING') pending, count(*) filter (where status = 'PROCESSING') processing
  from (select status from {schema}.outbox_tasks t
    where t.queue = n.queue and settled_at is null and available_at is not null limit $1) x) p
where n.queue is not null
order by n.queue
