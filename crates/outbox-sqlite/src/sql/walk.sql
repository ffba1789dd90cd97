-- A delayed row (a time, but no error) holds nothing back: passed over.
SELECT seq, status = 'PROCESSING', available_at < 9223372036854775807, lost_count, coalesce(octet_length(payload), 0)
FROM outbox_tasks INDEXED BY outbox_parked
WHERE queue = ?1 AND aggregate_type = ?2 AND aggregate_id = ?3 AND seq >= ?4
  AND settled_at IS NULL AND available_at IS NOT NULL
  AND (available_at = 9223372036854775807 OR last_error IS NOT NULL)
ORDER BY seq
LIMIT ?5
