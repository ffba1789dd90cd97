-- Claims of a queue without order: no queue lock, any number at once, a retried row holds nothing back. The memory is that
-- of outbox_claim_v1: transactions that commit late are found, and the entries of rows long settled are not walked.
create function {schema}.outbox_claim_unordered_v1(
    p_queue text, p_token bigint, p_relay text, p_lease_ms bigint, p_limit int, p_bytes bigint,
    p_full boolean, p_from bigint, p_due_from timestamptz,
    p_watch xid8[], p_watch_from bigint[], p_watch_due_from timestamptz[])
  returns table (
    outcome text, next_from bigint, next_due_from timestamptz,
    next_watch xid8[], next_watch_from bigint[], next_watch_due_from timestamptz[],
    next_due_us bigint, made_at timestamptz, missed bigint,
    event_seq bigint, event_ctid tid, event_id uuid, event_aggregate_type text, event_aggregate_id text,
    event_event_type text, event_payload json, event_payload_bytes bytea, event_content_type text, event_headers json,
    event_destination text, event_created_at timestamptz, event_retry_count int, event_max_retries int,
    event_lost_count int, event_priority smallint, event_is_hold boolean)
  language plpgsql
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_mergejoin = off set enable_sort = off set jit = off
  set work_mem = '32MB'
as $outbox$
declare
  v_paused boolean; v_drawn bigint; v_pick tid[]; v_missed bigint; v_n int;
  v_start bigint; v_first_ready bigint; v_first_due timestamptz; v_lo bigint; v_hi bigint;
begin
  perform set_config('synchronous_commit', 'off', true);
  select case when is_called then last_value else 0 end into v_drawn from {schema}.outbox_tasks_seq_seq;
  select paused into v_paused from {schema}.outbox_queues where queue = p_queue;
  if not found then outcome := 'Unknown'; return next; return; end if;
  if v_paused then outcome := 'Paused'; return next; return; end if;
  perform pg_current_xact_id(); -- after v_drawn, before the scan's snapshot

  -- What an ordered past of the queue has parked would otherwise wait for ever.
  if p_full then
    update {schema}.outbox_tasks set available_at = clock_timestamp(), updated_at = now()
    where queue = p_queue and settled_at is null and available_at is not null and available_at = 'infinity'
      and status = 'PENDING';
    delete from {schema}.outbox_blocked_keys where queue = p_queue;
  end if;

  with snap as materialized (select pg_current_snapshot() s, pg_current_xact_id()::text::bigint own),
  running as materialized (
    select x, coalesce(f, p_from) f, coalesce(d, p_due_from) d
    from (select pg_snapshot_xip(s) x from snap
      union all
      select g::text::xid8 from snap, generate_series(pg_snapshot_xmax(s)::text::bigint, own - 1) g) r
      left join unnest(p_watch, p_watch_from, p_watch_due_from) u(y, f, d) on y = x),
  start as materialized (
    select least(p_from, min(f)) f, least(p_due_from, min(d)) d
    from snap, unnest(p_watch, p_watch_from, p_watch_due_from) u(x, f, d)
    where pg_visible_in_snapshot(x, s)),
  scan as materialized (
    select case when p_full then 0 else f end f, case when p_full then '-infinity' else d end d from start),
  -- Ready rows in flight included, and rows that another claim is taking just now: it may roll back.
  first_ready as materialized (
    select seq from {schema}.outbox_tasks
    where queue = p_queue and seq >= (select f from scan) and settled_at is null and available_at is null
    order by seq limit 1),
  first_due as materialized (
    select available_at from {schema}.outbox_tasks
    where queue = p_queue and settled_at is null and available_at < 'infinity'
      and available_at >= (select d from scan) and available_at <= now() and status = 'PENDING'
    order by available_at, seq limit 1),
  urgent as materialized (
    select ctid cc, seq, priority, lost_count, pg_column_size(payload) p1, pg_column_size(payload_bytes) p2,
      'R'::"char" kind, null::timestamptz av
    from {schema}.outbox_tasks
    where queue = p_queue and seq >= (select f from scan) and settled_at is null and available_at is null
      and priority > 0 and status = 'PENDING'
    order by priority desc, seq limit p_limit for update skip locked),
  due as materialized (
    select ctid cc, seq, priority, lost_count, pg_column_size(payload) p1, pg_column_size(payload_bytes) p2,
      'D'::"char" kind, available_at av
    from {schema}.outbox_tasks
    where queue = p_queue and settled_at is null and available_at < 'infinity'
      and available_at >= (select d from scan) and available_at <= now() and status = 'PENDING'
    order by available_at, seq limit p_limit for update skip locked),
  -- Only as many as the two above leave room for: a locked row is hidden from the other claims.
  ready as materialized (
    select ctid cc, seq, priority, lost_count, pg_column_size(payload) p1, pg_column_size(payload_bytes) p2,
      'R'::"char" kind, null::timestamptz av
    from {schema}.outbox_tasks
    where queue = p_queue and seq >= (select f from scan) and settled_at is null and available_at is null
      and priority <= 0 and status = 'PENDING'
    order by seq limit greatest(p_limit - (select count(*) from urgent) - (select count(*) from due), 0)
    for update skip locked),
  seen as materialized (select * from urgent union all select * from due union all select * from ready),
  summed as (
    select *, row_number() over o n, sum(8 ^ least(lost_count, 7)) over o weight,
      sum(coalesce(p1, 0) + coalesce(p2, 0)) over o bytes
    from seen window o as (order by priority desc, seq rows unbounded preceding)),
  chosen as (select *, n = 1 or weight <= p_limit and bytes <= p_bytes pick from summed)
  select array_agg(cc) filter (where pick),
    min(seq) filter (where pick and kind = 'R'), max(seq) filter (where pick and kind = 'R'),
    count(*) filter (where pick and (kind = 'R' and seq < (select f from start)
      or kind = 'D' and av < (select d from start))),
    (select f from start), (select seq from first_ready), (select available_at from first_due),
    (select array_agg(x order by x) from running), (select array_agg(f order by x) from running),
    (select array_agg(d order by x) from running)
  into v_pick, v_lo, v_hi, v_missed, v_start, v_first_ready, v_first_due,
    next_watch, next_watch_from, next_watch_due_from
  from chosen;

  next_watch := coalesce(next_watch, '{}');
  next_watch_from := coalesce(next_watch_from, '{}');
  next_watch_due_from := coalesce(next_watch_due_from, '{}');
  next_from := least(coalesce(v_first_ready, v_start), v_drawn + 1);
  next_due_from := coalesce(v_first_due, now());

  if v_pick is null then
    if v_first_due is not null or exists (
        select from {schema}.outbox_tasks
        where queue = p_queue and seq >= v_start and settled_at is null and available_at is null
          and status = 'PENDING') then
      outcome := 'Busy'; next_from := null; next_due_from := null; -- others are taking them, or a stranger has them
    elsif exists (select from {schema}.outbox_claims where queue = p_queue) then
      outcome := 'Held';
    else
      outcome := 'Empty';
      select greatest(ceil(extract(epoch from available_at - clock_timestamp()) * 1000000), 0)::bigint into next_due_us
      from {schema}.outbox_tasks
      where queue = p_queue and settled_at is null and available_at < 'infinity' and available_at > now()
      order by available_at, seq limit 1;
    end if;
    return next; return;
  end if;

  insert into {schema}.outbox_claims (token, queue, relay, lease_until, task_count, seq_from, seq_to)
  values (p_token, p_queue, p_relay, now() + p_lease_ms * interval '1 ms', cardinality(v_pick), v_lo, v_hi);
  outcome := 'Rows'; made_at := clock_timestamp(); missed := v_missed;
  return next;
  return query
    update {schema}.outbox_tasks t set status = 'PROCESSING', claim_token = p_token, updated_at = now()
    where ctid = any(v_pick) and status = 'PENDING'
    returning null::text, null::bigint, null::timestamptz, null::xid8[], null::bigint[], null::timestamptz[],
      null::bigint, null::timestamptz, null::bigint,
      seq, ctid, id, aggregate_type, aggregate_id, event_type, payload, payload_bytes, content_type, headers,
      destination, created_at, retry_count, max_retries, lost_count, priority, false;
  get diagnostics v_n = row_count;
  if v_n <> cardinality(v_pick) then
    raise exception 'short claim: % of % rows', v_n, cardinality(v_pick) using errcode = '40001';
  end if;
end $outbox$;
revoke all on function {schema}.outbox_claim_unordered_v1(text, bigint, text, bigint, int, bigint, boolean, bigint,
  timestamptz, xid8[], bigint[], timestamptz[]) from public;
