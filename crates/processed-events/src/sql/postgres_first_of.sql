-- In the order of the array, which is sorted: two batches wait for each other in one direction only.
INSERT INTO {table} (event_id, processed_at)
SELECT event_id, now()
FROM unnest($1::text[]) WITH ORDINALITY AS batch (event_id, position)
ORDER BY position
ON CONFLICT (event_id) DO NOTHING
RETURNING event_id
