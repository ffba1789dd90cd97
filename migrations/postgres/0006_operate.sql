-- What operators do to FAILED rows. p_ids NULL: all of p_queue; both NULL: all there are. Every queue concerned is locked
-- first, so that no claim is under way; later statements see what earlier ones of other transactions have done.

create function {schema}.outbox_lock_failed_v1(p_ids uuid[], p_queue text) returns void language plpgsql
  set search_path = pg_catalog, pg_temp
as $outbox$
begin
  perform pg_current_xact_id(); -- before a row is stamped with the clock
  -- A queue that nobody serves may be unknown.
  insert into {schema}.outbox_queues (queue)
  select distinct queue from {schema}.outbox_tasks
  where failed_at is not null and (p_ids is null or id = any(p_ids)) and (p_queue is null or queue = p_queue)
  on conflict do nothing;
  perform from {schema}.outbox_queues
  where queue in (select queue from {schema}.outbox_tasks
    where failed_at is not null and (p_ids is null or id = any(p_ids)) and (p_queue is null or queue = p_queue))
  order by queue for update;
end $outbox$;

-- Back to PENDING. A row that holds its key keeps its place: the block stays and the row is its head. last_error stays too:
-- by it a retried row is told from a delayed one.
create function {schema}.outbox_retry_failed_v1(p_ids uuid[], p_queue text) returns bigint language plpgsql
  set search_path = pg_catalog, pg_temp
as $outbox$
declare v_n bigint;
begin
  perform {schema}.outbox_lock_failed_v1(p_ids, p_queue);
  with back as (
    update {schema}.outbox_tasks set status = 'PENDING', retry_count = 0, lost_count = 0, claim_token = null,
      available_at = clock_timestamp(), settled_at = null, failed_at = null, updated_at = now(),
      last_error = coalesce(last_error, 'retried by an operator')
    where failed_at is not null and (p_ids is null or id = any(p_ids)) and (p_queue is null or queue = p_queue)
    returning queue, aggregate_type a, aggregate_id i, seq),
  lowered as (
    -- The walk over the followers of a released key must meet the row. A row at or before the hold is no follower.
    update {schema}.outbox_blocked_keys b set follow_from = x.seq
    from (
      select back.queue, a, i, min(seq) seq
      from back join {schema}.outbox_blocked_keys k
        on k.queue = back.queue and k.aggregate_type = a and k.aggregate_id = i and back.seq > k.hold_after
      group by 1, 2, 3) x
    where b.queue = x.queue and b.aggregate_type = x.a and b.aggregate_id = x.i and x.seq < b.follow_from)
  select count(*) into v_n from back;
  return v_n;
end $outbox$;

-- Given up for good: stays FAILED, but no longer asks for attention, and holds nothing back.
create function {schema}.outbox_discard_failed_v1(p_ids uuid[], p_queue text, p_receipt text) returns bigint
  language plpgsql
  set search_path = pg_catalog, pg_temp
as $outbox$
declare v_n bigint;
begin
  perform {schema}.outbox_lock_failed_v1(p_ids, p_queue);
  with gone as (
    update {schema}.outbox_tasks set failed_at = null, receipt = p_receipt, settled_at = now(), updated_at = now()
    where failed_at is not null and (p_ids is null or id = any(p_ids)) and (p_queue is null or queue = p_queue)
    returning queue, aggregate_type a, aggregate_id i, seq),
  released as (
    update {schema}.outbox_blocked_keys b set released = true from gone
    where b.queue = gone.queue and b.aggregate_type = gone.a and b.aggregate_id = gone.i and b.hold_after = gone.seq)
  select count(*) into v_n from gone;
  return v_n;
end $outbox$;

revoke all on function {schema}.outbox_lock_failed_v1(uuid[], text), {schema}.outbox_retry_failed_v1(uuid[], text),
  {schema}.outbox_discard_failed_v1(uuid[], text, text) from public;
