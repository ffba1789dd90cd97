-- tid and xid8 go out in their binary form, which sqlx need not look up in the catalogue on each new connection.
select outcome, next_from, next_due_from, pg_catalog.array_send(next_watch) as next_watch, next_watch_from,
  next_watch_due_from, next_due_us, made_at, missed,
  event_seq, pg_catalog.tidsend(event_ctid), event_id, event_aggregate_type, event_aggregate_id, event_event_type,
  event_payload, event_payload_bytes, event_content_type, event_headers, event_destination, event_created_at,
  event_retry_count, event_max_retries, event_lost_count, event_priority, event_is_hold, held_rows
from {schema}.outbox_claim_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
