-- An idle relay holds the advisory lock of its queue. A transaction that inserts tries the same lock, shared, until its
-- end: only where that fails, because a relay sleeps, does it notify. So busy producers do not notify at all: NOTIFY takes
-- a lock of the whole server at commit. While a transaction that did not notify is open no relay gets the lock, and it
-- keeps looking; once it has the lock it claims one last time, and nothing can have come unseen.
create function {schema}.outbox_wake_up() returns trigger language plpgsql
  set search_path = pg_catalog, pg_temp
as $outbox$
begin
  -- The payload is the lock's key: a queue's name may be longer than a payload.
  perform pg_notify('outbox_wake_up', hashtextextended(new.queue, tg_relid::bigint)::text);
  return new;
end $outbox$;

-- The lock is tried in the condition: rows that need no notification pay no call of a PL/pgSQL function. Before the row,
-- because its order against the insert does not matter: lock and notification belong to the transaction.
create trigger outbox_wake_up before insert on {schema}.outbox_tasks
  for each row when (not pg_catalog.pg_try_advisory_xact_lock_shared(
    pg_catalog.hashtextextended(new.queue, $outbox${schema}.outbox_tasks$outbox$::regclass::oid::bigint)))
  execute function {schema}.outbox_wake_up();
alter table {schema}.outbox_tasks enable always trigger outbox_wake_up;

revoke all on function {schema}.outbox_wake_up() from public;
