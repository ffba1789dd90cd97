-- The key of the queue's lock, which notifications name, and whether this session has got the lock.
select key, pg_catalog.pg_try_advisory_lock(key)
from (select pg_catalog.hashtextextended($1, $outbox${schema}.outbox_tasks$outbox$::regclass::oid::bigint) key offset 0) x
