-- Where it was; a time that has passed becomes now.
UPDATE outbox_tasks
SET status = 'PENDING', claim_token = NULL, updated_at = ?3, lost_count = min(lost_count + ?4, 2147483647),
    available_at = CASE WHEN available_at < 9223372036854775807 THEN ?3 ELSE available_at END
WHERE seq = ?1 AND claim_token = ?2
