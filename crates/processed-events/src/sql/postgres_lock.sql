-- CREATE TABLE IF NOT EXISTS fails when another session creates the same table at the same time.
SELECT pg_advisory_xact_lock(hashtextextended('processed-events', 0));
