-- A released block below the row stays as it is: followers in between still wait, and the walk stops at this row and
-- makes it the hold.
INSERT INTO outbox_blocked_keys AS b (queue, aggregate_type, aggregate_id, hold_after, follow_from, reason)
SELECT queue, aggregate_type, aggregate_id, seq, seq, ?2 FROM outbox_tasks WHERE seq = ?1
ON CONFLICT (queue, aggregate_type, aggregate_id) DO UPDATE SET
    hold_after = min(b.hold_after, excluded.hold_after),
    released = b.released AND b.hold_after < excluded.hold_after,
    follow_from = min(b.follow_from, excluded.follow_from),
    reason = excluded.reason
