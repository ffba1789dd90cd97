-- SKIP LOCKED: two purges at once share the work. Rows are never updated, so a ctid stays what it is. $1 is in
-- microseconds.
DELETE FROM {table} WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {table}
    WHERE processed_at < now() - $1::bigint * interval '1 microsecond'
    ORDER BY processed_at
    LIMIT $2::bigint
    FOR UPDATE SKIP LOCKED))
