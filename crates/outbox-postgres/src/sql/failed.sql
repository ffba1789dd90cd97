select id, seq, queue, aggregate_type, aggregate_id, event_type, retry_count, lost_count, last_error, failed_at
from {schema}.outbox_tasks
where failed_at is not null and ($1::uuid[] is null or id = any($1)) and ($2::text is null or queue = $2)
order by failed_at desc, seq desc
limit $3
