-- Takes one expired claim of the queue apart. No row: none has expired.
create function {schema}.outbox_sweep_v1(p_queue text, p_failed_blocks boolean, p_max_retries int, p_last_error text)
  returns table (swept_token bigint, swept_relay text, recovered bigint, event_types text[], most_lost int,
    failed_id uuid, failed_event_type text, failed_lost_count int)
  language plpgsql
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_mergejoin = off set enable_hashjoin = off set enable_sort = off set jit = off
as $outbox$
declare v_claim {schema}.outbox_claims; v_rows tid[]; v_row record;
begin
  select * into v_claim from {schema}.outbox_claims
  where queue = p_queue and lease_until < clock_timestamp() limit 1 for update skip locked;
  if not found then return; end if;
  -- The fence. It also gives this transaction its id before it stamps a row with the clock.
  delete from {schema}.outbox_claims where token = v_claim.token;

  v_rows := array(select ctid from {schema}.outbox_tasks
    where queue = p_queue and settled_at is null and available_at is null
      and seq between v_claim.seq_from and v_claim.seq_to and claim_token = v_claim.token);
  v_rows := v_rows || array(select ctid from {schema}.outbox_tasks
    where queue = p_queue and settled_at is null and available_at < 'infinity' and available_at <= clock_timestamp()
      and claim_token = v_claim.token
    order by available_at, seq limit v_claim.task_count - cardinality(v_rows));
  v_rows := v_rows || array(select t.cc from {schema}.outbox_blocked_keys b, lateral (
      select ctid cc from {schema}.outbox_tasks
      where queue = p_queue and aggregate_type = b.aggregate_type and aggregate_id = b.aggregate_id
        and seq >= b.follow_from and settled_at is null and available_at is not null
        and available_at = 'infinity' and claim_token = v_claim.token) t
    where b.queue = p_queue limit v_claim.task_count - cardinality(v_rows));

  swept_token := v_claim.token; swept_relay := v_claim.relay; recovered := 0; event_types := '{}'; most_lost := 0;
  if v_claim.task_count = 1 then -- alone, so not innocent
    perform from {schema}.outbox_queues where queue = p_queue for update;
    update {schema}.outbox_tasks set status = 'FAILED', last_error = p_last_error, settled_at = now(), failed_at = now(),
      updated_at = now(), available_at = null, claim_token = null, lost_count = lost_count + (lost_count < 2147483647)::int
    where ctid = any(v_rows) and claim_token = v_claim.token and lost_count >= coalesce(max_retries, p_max_retries)
    returning aggregate_type a, aggregate_id i, seq, id, event_type, lost_count into v_row;
    if found then
      if p_failed_blocks then
        insert into {schema}.outbox_blocked_keys as b (queue, aggregate_type, aggregate_id, hold_after, follow_from, reason)
        values (p_queue, v_row.a, v_row.i, v_row.seq, v_row.seq, p_last_error)
        on conflict (queue, aggregate_type, aggregate_id) do update set
          hold_after = least(b.hold_after, excluded.hold_after),
          released = b.released and b.hold_after < excluded.hold_after,
          follow_from = least(b.follow_from, excluded.follow_from),
          reason = excluded.reason;
      else
        update {schema}.outbox_blocked_keys set released = true
        where queue = p_queue and aggregate_type = v_row.a and aggregate_id = v_row.i and hold_after = v_row.seq;
      end if;
      failed_id := v_row.id; failed_event_type := v_row.event_type; failed_lost_count := v_row.lost_count;
      return next; return;
    end if;
  end if;

  with back as (
    update {schema}.outbox_tasks set status = 'PENDING', claim_token = null, lost_count = lost_count + (lost_count < 2147483647)::int,
      updated_at = now(),
      available_at = case when isfinite(available_at) then clock_timestamp() else available_at end
    where ctid = any(v_rows) and claim_token = v_claim.token
    returning event_type, lost_count)
  select count(*), coalesce(array_agg(distinct event_type) filter (where event_type is not null), '{}'),
    coalesce(max(lost_count), 0)
  into recovered, event_types, most_lost from back;
  return next;
end $outbox$;

-- Returns PROCESSING rows whose claim does not exist (a restore, hand-written SQL) to PENDING once they have not been
-- touched for a lease. Nothing is charged: no relay is known to have died with them.
create function {schema}.outbox_recover_orphans_v1(p_queue text, p_lease_ms bigint) returns bigint language plpgsql
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $outbox$
declare v_rows tid[]; v_before timestamptz := now() - p_lease_ms * interval '1 ms'; v_n bigint;
begin
  perform pg_current_xact_id(); -- before a row is stamped with the clock
  v_rows := array(
    select ctid from {schema}.outbox_tasks t
    where queue = p_queue and settled_at is null and available_at is null
      and status = 'PROCESSING' and updated_at < v_before
      and not exists (select from {schema}.outbox_claims c where c.token = t.claim_token)
    union all
    select ctid from {schema}.outbox_tasks t
    where queue = p_queue and settled_at is null and available_at is not null
      and status = 'PROCESSING' and updated_at < v_before
      and not exists (select from {schema}.outbox_claims c where c.token = t.claim_token));
  -- A row that was claimed meanwhile has a young updated_at.
  update {schema}.outbox_tasks set status = 'PENDING', claim_token = null, updated_at = now(),
    available_at = case when isfinite(available_at) then clock_timestamp() else available_at end
  where ctid = any(v_rows) and queue = p_queue and status = 'PROCESSING' and updated_at < v_before;
  get diagnostics v_n = row_count;
  return v_n;
end $outbox$;

-- Deletes at most p_limit rows of the queue that have outlived its retention; p_failed_keep_ms NULL keeps FAILED ones.
create function {schema}.outbox_purge_v1(p_queue text, p_keep_ms bigint, p_failed_keep_ms bigint, p_limit int)
  returns bigint language plpgsql
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_mergejoin = off set enable_hashjoin = off set jit = off
as $outbox$
declare v_n bigint; v_done bigint := 0;
begin
  perform set_config('synchronous_commit', 'off', true);
  delete from {schema}.outbox_tasks where ctid = any(array(
    select ctid from {schema}.outbox_tasks
    where settled_at < now() - p_keep_ms * interval '1 ms' and failed_at is null and queue = p_queue
    order by settled_at limit p_limit for update skip locked));
  get diagnostics v_done = row_count;

  if v_done < p_limit and p_failed_keep_ms is not null and exists (
      select from {schema}.outbox_tasks
      where queue = p_queue and failed_at is not null and failed_at < now() - p_failed_keep_ms * interval '1 ms') then
    -- Where a FAILED row holds its key, its going releases the key.
    perform from {schema}.outbox_queues where queue = p_queue for update;
    with gone as (
      delete from {schema}.outbox_tasks where ctid = any(array(
        select ctid from {schema}.outbox_tasks
        where queue = p_queue and failed_at is not null and failed_at < now() - p_failed_keep_ms * interval '1 ms'
        limit p_limit - v_done for update skip locked))
      returning aggregate_type a, aggregate_id i, seq),
    released as (
      update {schema}.outbox_blocked_keys b set released = true from gone
      where b.queue = p_queue and b.aggregate_type = gone.a and b.aggregate_id = gone.i and b.hold_after = gone.seq)
    select count(*) into v_n from gone;
    v_done := v_done + v_n;
  end if;
  return v_done;
end $outbox$;

revoke all on function {schema}.outbox_sweep_v1(text, boolean, int, text),
  {schema}.outbox_recover_orphans_v1(text, bigint), {schema}.outbox_purge_v1(text, bigint, bigint, int) from public;
