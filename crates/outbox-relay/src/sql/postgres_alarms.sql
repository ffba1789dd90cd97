-- Per queue: keys whose head waits though nothing was charged to it, which is how a hold looks, with one reason; and
-- claims whose lease ran out longer ago than a sweep should take.
select queue, sum(held)::bigint, min(reason), sum(expired)::bigint
from (
  select b.queue, 1 as held, b.reason, 0 as expired
  from {schema}.outbox_blocked_keys b
  join {schema}.outbox_tasks t on t.queue = b.queue and t.aggregate_type = b.aggregate_type
    and t.aggregate_id = b.aggregate_id and t.seq = b.hold_after
  where not b.released and t.settled_at is null and t.available_at is not null
    and t.retry_count = 0 and t.last_error is not null
  union all
  select queue, 0, null, 1 from {schema}.outbox_claims
  where lease_until < clock_timestamp() - $1 * interval '1 ms'
) found
group by queue order by queue
