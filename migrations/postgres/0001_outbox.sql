-- Tables of the outbox. Every name is qualified, so that neither a search_path nor a pooler decides where they are.

create type {schema}.outbox_status as enum ('PENDING', 'PROCESSING', 'PUBLISHED', 'FAILED');

-- fillfactor: a claim changes no indexed column, so its new row version stays on the page (HOT) when there is room.
create table {schema}.outbox_tasks (
  id uuid primary key default gen_random_uuid(),
  queue text not null default 'default',
  aggregate_type text not null,
  aggregate_id text not null,
  event_type text,
  payload json,
  payload_bytes bytea,
  content_type text,
  headers json,
  destination text,
  status {schema}.outbox_status not null default 'PENDING',
  retry_count int not null default 0,
  max_retries int,
  lost_count int not null default 0,
  priority smallint not null default 0,
  last_error text,
  receipt text,
  available_at timestamptz,
  claim_token bigint,
  created_at timestamptz not null default now(),
  updated_at timestamptz not null default now(),
  settled_at timestamptz,
  failed_at timestamptz,
  -- Last on purpose: columns are computed in this order, so a slow payload expression runs before the seq is drawn.
  seq bigint generated always as identity (cache 1),
  constraint outbox_one_payload check (payload is null or payload_bytes is null)
) with (
  fillfactor = 50,
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_vacuum_insert_scale_factor = 0.1,
  autovacuum_analyze_scale_factor = 0.1,
  autovacuum_vacuum_cost_delay = 0
);

-- Uncompressed: pg_column_size is then the payload's size, and nothing is fetched to learn it.
alter table {schema}.outbox_tasks
  alter payload set storage external,
  alter payload_bytes set storage external;

comment on column {schema}.outbox_tasks.available_at is
  'NULL: ready. A time: delay or backoff until then. infinity: waits behind the head of its key.';
comment on column {schema}.outbox_tasks.last_error is
  'Why it failed. Kept by an operator''s retry, so that a retried row is told from a delayed one.';

-- No index names status or claim_token, predicates included: a claim stays a HOT update.
create index outbox_ready on {schema}.outbox_tasks (queue, seq)
  where settled_at is null and available_at is null;
create index outbox_due on {schema}.outbox_tasks (queue, available_at, seq)
  where settled_at is null and available_at < 'infinity';
create index outbox_parked on {schema}.outbox_tasks (queue, aggregate_type, aggregate_id, seq)
  where settled_at is null and available_at is not null;
create index outbox_urgent on {schema}.outbox_tasks (queue, priority desc, seq)
  where settled_at is null and available_at is null and priority > 0;
create index outbox_failed on {schema}.outbox_tasks (queue, aggregate_type, aggregate_id, seq)
  where failed_at is not null;
create index outbox_settled on {schema}.outbox_tasks (settled_at)
  where settled_at is not null and failed_at is null;

-- One row a queue: the claim lock and the pause switch. A claim locks it and does not write it.
create table {schema}.outbox_queues (
  queue text primary key,
  paused boolean not null default false
);
insert into {schema}.outbox_queues (queue) values ('default');

-- One row a batch in flight: the lease belongs to it. seq_from to seq_to is the range of its ready rows: no index knows
-- the token, so this is how the sweep finds them.
create table {schema}.outbox_claims (
  token bigint primary key,
  queue text not null,
  relay text not null,
  claimed_at timestamptz not null default now(),
  lease_until timestamptz not null,
  task_count int not null,
  seq_from bigint,
  seq_to bigint
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);

-- Keys whose head is retried: rows of the key with seq > hold_after wait. No follower, retried or FAILED row above
-- hold_after lies below follow_from; without it every walk would read the dead entries of all followers delivered before.
create table {schema}.outbox_blocked_keys (
  queue text not null,
  aggregate_type text not null,
  aggregate_id text not null,
  hold_after bigint not null,
  released boolean not null default false,
  follow_from bigint not null,
  reason text,
  since timestamptz not null default now(),
  primary key (queue, aggregate_type, aggregate_id)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
-- Thousands of keys may be held while few are released.
create index outbox_released on {schema}.outbox_blocked_keys (queue, since) where released;

-- Rows in flight with the lease of their claim, for people.
create view {schema}.outbox_in_flight as
  select t.*, c.relay, c.claimed_at, c.lease_until
  from {schema}.outbox_tasks t join {schema}.outbox_claims c on c.token = t.claim_token
  where t.settled_at is null;

-- A transaction has its id before it draws a seq: whoever has drawn a seq is then older than a claim that draws its own
-- id afterwards.
create function {schema}.outbox_xid_first() returns trigger language plpgsql
  set search_path = pg_catalog, pg_temp
as $outbox$
begin
  perform pg_current_xact_id();
  return null;
end $outbox$;
create trigger outbox_xid_first before insert on {schema}.outbox_tasks
  for each statement execute function {schema}.outbox_xid_first();
alter table {schema}.outbox_tasks enable always trigger outbox_xid_first;

-- now() is the start of the transaction: in a long one it lies below the time up to which relays have looked through the
-- due rows already. A time that has passed therefore means ready. WHEN is checked first: other rows pay nothing.
create function {schema}.outbox_past_is_ready() returns trigger language plpgsql
  set search_path = pg_catalog, pg_temp
as $outbox$
begin
  if new.available_at <= clock_timestamp() then
    new.available_at := null;
  end if;
  return new;
end $outbox$;
create trigger outbox_past_is_ready before insert on {schema}.outbox_tasks
  for each row when (new.available_at is not null) execute function {schema}.outbox_past_is_ready();
alter table {schema}.outbox_tasks enable always trigger outbox_past_is_ready;

revoke all on function {schema}.outbox_xid_first(), {schema}.outbox_past_is_ready() from public;
