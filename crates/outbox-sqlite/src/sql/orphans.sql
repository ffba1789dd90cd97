-- The two indexes together hold the unsettled rows and no others.
SELECT seq, claim_token
FROM (
    SELECT seq, claim_token
    FROM outbox_tasks INDEXED BY outbox_ready
    WHERE queue = ?1 AND settled_at IS NULL AND available_at IS NULL AND status = 'PROCESSING' AND updated_at <= ?2
    UNION ALL
    SELECT seq, claim_token
    FROM outbox_tasks INDEXED BY outbox_parked
    WHERE queue = ?1 AND settled_at IS NULL AND available_at IS NOT NULL AND status = 'PROCESSING' AND updated_at <= ?2)
WHERE NOT EXISTS (SELECT 1 FROM outbox_claims WHERE token = claim_token)
ORDER BY seq
