select pg_advisory_xact_lock(hashtextextended('outbox migrations ' || $1, 0))
