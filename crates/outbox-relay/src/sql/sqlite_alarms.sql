-- Per queue: keys whose head waits though nothing was charged to it, which is how a hold looks, with one reason; and
-- claims whose lease ran out longer ago than a sweep should take.
SELECT queue, SUM(held), MIN(reason), SUM(expired)
FROM (
    SELECT b.queue, 1 AS held, b.reason, 0 AS expired
    FROM outbox_blocked_keys b
    JOIN outbox_tasks t ON t.seq = b.hold_after
    WHERE NOT b.released AND t.settled_at IS NULL AND t.retry_count = 0 AND t.last_error IS NOT NULL
    UNION ALL
    SELECT queue, 0, NULL, 1 FROM outbox_claims
    WHERE lease_until < CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - ?1
)
GROUP BY queue ORDER BY queue
