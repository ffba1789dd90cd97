-- No conflict target: naming one takes the right to read the column, and a producer may have only INSERT. Ordered, so
-- that seq follows the order of the events.
INSERT INTO {table} (id, queue, aggregate_type, aggregate_id, event_type, payload, payload_bytes, content_type,
    headers, destination, max_retries, priority, available_at)
SELECT id, queue, aggregate_type, aggregate_id, event_type, payload::json, payload_bytes, content_type,
    headers::json, destination, max_retries, priority, clock_timestamp() + delay_us * interval '1 microsecond'
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::text[],
    $9::text[], $10::text[], $11::int[], $12::smallint[], $13::bigint[]) WITH ORDINALITY
  AS event (id, queue, aggregate_type, aggregate_id, event_type, payload, payload_bytes, content_type,
    headers, destination, max_retries, priority, delay_us, position)
ORDER BY position
ON CONFLICT DO NOTHING
