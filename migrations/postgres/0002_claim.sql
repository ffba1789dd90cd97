-- Claims of an ordered queue. Returns one row with the outcome and, unless Busy or Paused, the claimer's new memory
-- (next_*), then the events in any order: the client sorts by seq, a sort here would copy every payload once more.
-- p_from, p_due_from and the three p_watch arrays are the memory of the last claim; at first 0, -infinity and empty.
-- p_full scans from the beginning whatever the memory says; missed counts what only that found. p_window is how many ready
-- rows to look at first: those that the last claim saw or put in flight still lie where the scan starts, and a window
-- full of them would be read in vain before it grows.
create function {schema}.outbox_claim_v1(
    p_queue text, p_token bigint, p_relay text, p_lease_ms bigint, p_limit int, p_bytes bigint,
    p_full boolean, p_from bigint, p_due_from timestamptz,
    p_watch xid8[], p_watch_from bigint[], p_watch_due_from timestamptz[], p_failed_blocks boolean, p_window int)
  returns table (
    outcome text, next_from bigint, next_due_from timestamptz,
    next_watch xid8[], next_watch_from bigint[], next_watch_due_from timestamptz[],
    next_due_us bigint, made_at timestamptz, missed bigint, held_rows bigint,
    event_seq bigint, event_ctid tid, event_id uuid, event_aggregate_type text, event_aggregate_id text,
    event_event_type text, event_payload json, event_payload_bytes bytea, event_content_type text, event_headers json,
    event_destination text, event_created_at timestamptz, event_retry_count int, event_max_retries int,
    event_lost_count int, event_priority smallint, event_is_hold boolean)
  language plpgsql
  set search_path = pg_catalog, pg_temp
  -- A LIMIT parameter can flip a generic plan to a sequential scan of the whole table, and a plan made while no row was
  -- parked reads the due rows through outbox_parked, all followers included, and sorts: leave the planner no choice.
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_mergejoin = off set enable_sort = off set jit = off
  set work_mem = '32MB' -- RETURN QUERY would spill to disk beyond it
as $outbox$
declare
  v_paused boolean; v_blocks int; v_many_blocks boolean; v_drawn bigint; v_window int := least(greatest(p_window, p_limit), 64 * p_limit); v_followers int := greatest(p_limit / 16, 1);
  v_most_parked int := greatest(p_limit / 2, 1);
  v_walk record; v_follow tid[]; v_more boolean; v_cleared boolean;
  v_key_at text[]; v_key_id text[]; v_key_busy boolean[]; v_key_waits boolean[];
  v_pick tid[]; v_park tid[]; v_below tid[]; v_hold_seqs bigint[];
  v_free int; v_ready int; v_due int; v_held boolean; v_missed bigint;
  v_start bigint; v_due_start timestamptz; v_end bigint; v_left bigint; v_due_end timestamptz; v_due_left timestamptz;
  v_lo bigint; v_hi bigint; v_n int;
begin
  perform set_config('synchronous_commit', 'off', true); -- as an attribute of the function it would do nothing
  -- Before the lock below gives this transaction its own id: every seq up to here was drawn by one with a lower id.
  select case when is_called then last_value else 0 end into v_drawn from {schema}.outbox_tasks_seq_seq;
  select paused into v_paused from {schema}.outbox_queues where queue = p_queue for update skip locked;
  if not found then
    outcome := case when exists (select from {schema}.outbox_queues where queue = p_queue) then 'Busy' else 'Unknown' end;
    return next; return;
  end if;
  if v_paused then outcome := 'Paused'; return next; return; end if;

  -- Every statement from here has a snapshot newer than the lock, and only its holder makes or ends a block.
  select count(*) into v_blocks from (select from {schema}.outbox_blocked_keys where queue = p_queue limit 101) x;
  v_many_blocks := v_blocks > 100;
  loop
    -- The walk over the followers of released keys. Without a block its plan is not even set up.
    v_follow := '{}'; v_key_at := '{}'; v_key_id := '{}'; v_key_busy := '{}'; v_key_waits := '{}'; v_more := false;
    v_cleared := false;
    if v_blocks > 0 then
      for v_walk in
        with key as (
          select aggregate_type a, aggregate_id i, follow_from from {schema}.outbox_blocked_keys
          where queue = p_queue and released order by since limit p_limit),
        walk as materialized (
          select key.*, x.* from key left join lateral (
            -- a delayed row (a time, no error) holds nothing back: passed over
            select ctid cc, seq, status, isfinite(available_at) retried from {schema}.outbox_tasks
            where queue = p_queue and aggregate_type = key.a and aggregate_id = key.i and seq >= key.follow_from
              and settled_at is null and available_at is not null and (available_at = 'infinity' or last_error is not null)
            order by seq limit v_followers) x on true
          limit 4 * v_followers), -- keys that this leaves unread count as busy below
        one as (
          select a, i, follow_from, least(min(seq) filter (where retried), (
              select seq from {schema}.outbox_tasks t where p_failed_blocks and queue = p_queue and failed_at is not null
                and aggregate_type = walk.a and aggregate_id = walk.i and seq >= walk.follow_from order by seq limit 1)) head
          from walk group by a, i, follow_from)
        select one.a, one.i, one.follow_from, one.head,
          min(seq) filter (where before) first_follower,
          array_agg(cc order by seq) filter (where before) followers,
          -- A head in flight keeps its key busy and becomes the hold only when it is back: its claim may have been told
          -- that there is no block, and would then publish the row without releasing it.
          coalesce(bool_or(status = 'PROCESSING' and (before or seq = head)), false) busy
        from one join (
            select walk.*, seq < coalesce(o.head, 9223372036854775807) before, o.head h
            from walk join one o using (a, i, follow_from)) w using (a, i, follow_from)
        group by 1, 2, 3, 4
      loop
        if not v_walk.busy and v_walk.first_follower is null then
          if v_walk.head is null then
            delete from {schema}.outbox_blocked_keys
            where queue = p_queue and aggregate_type = v_walk.a and aggregate_id = v_walk.i;
          else
            update {schema}.outbox_blocked_keys set hold_after = v_walk.head, follow_from = v_walk.head, released = false
            where queue = p_queue and aggregate_type = v_walk.a and aggregate_id = v_walk.i;
          end if;
          v_cleared := true;
          continue;
        end if;
        v_key_at := v_key_at || v_walk.a; v_key_id := v_key_id || v_walk.i; v_key_busy := v_key_busy || v_walk.busy;
        v_key_waits := v_key_waits || (not v_walk.busy or exists (
          select from {schema}.outbox_tasks where queue = p_queue and aggregate_type = v_walk.a
            and aggregate_id = v_walk.i and seq >= v_walk.follow_from and settled_at is null and available_at is not null
            and available_at = 'infinity' and status = 'PENDING'));
        continue when v_walk.busy;
        v_follow := v_follow || v_walk.followers[1 : v_followers - cardinality(v_follow)];
        v_more := v_more or cardinality(v_walk.followers) = v_followers or cardinality(v_follow) = v_followers;
        -- Not every time: each version of this row costs its readers while an old snapshot is open.
        if v_walk.first_follower - v_walk.follow_from >= p_limit then
          update {schema}.outbox_blocked_keys set follow_from = v_walk.first_follower
          where queue = p_queue and aggregate_type = v_walk.a and aggregate_id = v_walk.i;
        end if;
      end loop;
    end if;

    -- Where to start, whom to watch and the scan come from ONE snapshot, so from one statement: a transaction that ends
    -- between two snapshots would still be in progress for the start, while a later row of its key is already visible to
    -- the scan and overtakes it.
    with snap as materialized (select pg_current_snapshot() s, pg_current_xact_id()::text::bigint own),
    running as materialized (
      -- pg_snapshot_xip ends at the snapshot's xmax, one beyond the newest transaction that has ENDED. Those from there
      -- to this one are running too.
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
    ready as (
      select ctid cc, seq, aggregate_type a, aggregate_id i, status, lost_count,
        pg_column_size(payload) p1, pg_column_size(payload_bytes) p2, 'R'::"char" kind, null::timestamptz av
      from {schema}.outbox_tasks
      where queue = p_queue and seq >= (select f from scan) and settled_at is null and available_at is null
      order by seq limit v_window),
    due as (
      select ctid cc, seq, aggregate_type a, aggregate_id i, status, lost_count,
        pg_column_size(payload) p1, pg_column_size(payload_bytes) p2, 'D'::"char" kind, available_at av
      from {schema}.outbox_tasks
      where queue = p_queue and settled_at is null and available_at < 'infinity'
        and available_at >= (select d from scan) and available_at <= now()
      order by available_at, seq limit v_window),
    seen as materialized (
      select * from ready union all select * from due union all
      select ctid cc, seq, aggregate_type a, aggregate_id i, status, lost_count,
        pg_column_size(payload) p1, pg_column_size(payload_bytes) p2, 'F'::"char" kind, null
      from {schema}.outbox_tasks where ctid = any(v_follow)),
    in_flight as materialized (select a, i, seq, kind from seen where status = 'PROCESSING'),
    flight as materialized (
      select count(*) n, count(*) filter (where kind = 'R') ready_n, min(seq) filter (where kind = 'R') ready_left
      from in_flight),
    edge as materialized (
      select count(*) filter (where kind = 'R') ready_n, max(seq) filter (where kind = 'R') ready_end,
        count(*) filter (where kind = 'D') due_n, max(av) due_end
      from seen),
    walked as materialized (select * from unnest(v_key_at, v_key_id, v_key_busy, v_key_waits) u(a, i, busy, waits)),
    -- A few blocked keys are looked up by hash, many by index: a probe for each row costs a tenth of a claim.
    few_blocks as materialized (
      select aggregate_type a, aggregate_id i from {schema}.outbox_blocked_keys
      where not v_many_blocks and queue = p_queue),
    -- Only what could go: half of a window is usually in flight. Materialized: inlined, `free` is worked out once in each
    -- aggregate that filters by it.
    judged as materialized (
      select seen.*, b.hold_after, b.follow_from,
        -- waits for the head, or behind followers that wait; a row behind the last followers in flight is left as it is
        coalesce(kind <> 'F' and seq > b.hold_after and (not b.released or coalesce(waits, true)), false) blocked,
        -- in a list, so that it is looked up by hash: a join to it is planned for few rows, as a nested loop
        (seen.a, seen.i) not in (select a, i from in_flight)
          and (b.hold_after is null or kind = 'F' or seq <= b.hold_after)
          and not coalesce(b.released and coalesce(busy, true), false)
          -- beyond the end of a ready window that was cut off an earlier row of the key may be ready, or in flight
          and (kind <> 'D' or seq <= (
            select case when ready_n < v_window then 9223372036854775807 else ready_end end from edge)) free
      from seen
      left join lateral (
        select * from {schema}.outbox_blocked_keys b
        where (v_many_blocks or (seen.a, seen.i) in (select a, i from few_blocks))
          and b.queue = p_queue and b.aggregate_type = seen.a and b.aggregate_id = seen.i offset 0) b on true
      left join walked on walked.a = seen.a and walked.i = seen.i
      where seen.status = 'PENDING'),
    summed as (
      select *, count(*) filter (where blocked) over o blocked_n, count(*) filter (where free) over o free_n,
        sum(8 ^ least(lost_count, 7)) filter (where free) over o weight,
        sum(coalesce(p1, 0) + coalesce(p2, 0)) filter (where free) over o bytes
      from judged window o as (order by seq rows unbounded preceding)),
    chosen as (
      select *, blocked and blocked_n <= v_most_parked park,
        free and (free_n = 1 or weight <= p_limit and bytes <= p_bytes) pick
      from summed)
    select array_agg(cc) filter (where pick), array_agg(seq) filter (where pick and seq = hold_after),
      array_agg(cc) filter (where park), array_agg(cc) filter (where park and seq < follow_from),
      count(*) filter (where free), (select ready_n from edge), (select due_n from edge), (select n > 0 from flight),
      (select ready_end from edge),
      least(min(seq) filter (where kind = 'R' and not park), (select ready_left from flight)),
      (select due_end from edge), min(av) filter (where not park and not pick),
      min(seq) filter (where pick and kind = 'R'), max(seq) filter (where pick and kind = 'R'),
      (select f from start), (select d from start),
      count(*) filter (where pick and (kind = 'R' and seq < (select f from start)
        or kind = 'D' and av < (select d from start))),
      (select ready_n from flight),
      (select array_agg(x order by x) from running), (select array_agg(f order by x) from running),
      (select array_agg(d order by x) from running)
    into v_pick, v_hold_seqs, v_park, v_below, v_free, v_ready, v_due, v_held, v_end, v_left, v_due_end, v_due_left,
      v_lo, v_hi, v_start, v_due_start, v_missed, held_rows, next_watch, next_watch_from, next_watch_due_from
    from chosen;
    -- A quarter, not half: one key with every second row would be met at the brink of a growth at each claim, and rows
    -- that may not be parked yet pile up in the grown window.
    exit when v_free * 4 >= p_limit or v_window >= 64 * p_limit
      or v_ready < v_window and v_due < v_window and not (v_more and v_followers < p_limit);
    v_window := least(v_window * 4, 64 * p_limit); v_followers := p_limit;
    -- A grown window meets more blocked rows than half a batch: what is not parked would lie in the way of each later claim.
    v_most_parked := 4 * p_limit;
  end loop;

  next_watch := coalesce(next_watch, '{}');
  next_watch_from := coalesce(next_watch_from, '{}');
  next_watch_due_from := coalesce(next_watch_due_from, '{}');
  -- Not beyond what was drawn before this transaction had its id: a younger one may have drawn a seq since that the scan
  -- has passed.
  next_from := least(coalesce(v_left, v_end + 1, v_start), v_drawn + 1);
  next_due_from := least(v_due_left, case when v_due < v_window then now() else v_due_end end);

  if v_park is not null then
    -- A row that committed late may lie below the place where the walk over its key has arrived.
    if v_below is not null then
      update {schema}.outbox_blocked_keys b set follow_from = x.seq
      from (select aggregate_type a, aggregate_id i, min(seq) seq from {schema}.outbox_tasks
        where ctid = any(v_below) group by 1, 2) x
      where b.queue = p_queue and b.aggregate_type = x.a and b.aggregate_id = x.i and x.seq < b.follow_from;
    end if;
    update {schema}.outbox_tasks set available_at = 'infinity', updated_at = now()
    where ctid = any(array(select ctid from {schema}.outbox_tasks
      where ctid = any(v_park) and status = 'PENDING' for update skip locked));
    get diagnostics v_n = row_count;
    -- a stranger has the rest: look again
    if v_n < cardinality(v_park) then next_from := v_start; next_due_from := v_due_start; end if;
  end if;

  if v_pick is not null then
    perform from {schema}.outbox_tasks
    where ctid = any(v_pick) and status = 'PENDING' and queue = p_queue for update skip locked;
    get diagnostics v_n = row_count;
    if v_n < cardinality(v_pick) then
      -- A stranger has some: leave their keys out. A row that is not under its ctid any more was changed meanwhile: try
      -- again at once.
      with locked as materialized (
        select ctid cc from {schema}.outbox_tasks
        where ctid = any(v_pick) and status = 'PENDING' and queue = p_queue for update skip locked),
      wanted as materialized (
        select ctid cc, aggregate_type a, aggregate_id i from {schema}.outbox_tasks
        where ctid = any(v_pick) and status = 'PENDING' and queue = p_queue),
      taken as materialized (select distinct a, i from wanted where cc not in (select cc from locked))
      select array_agg(cc) filter (where not exists (select from taken where taken.a = wanted.a and taken.i = wanted.i))
      into v_pick
      from wanted having count(*) = cardinality(v_pick);
      next_from := v_start; next_due_from := v_due_start;
    end if;
    if v_pick is null then
      outcome := 'Busy'; next_from := null; next_due_from := null; return next; return;
    end if;
  end if;

  if v_pick is null then
    -- Only parked, or released keys that had nothing to give took the place of others: ask again at once.
    if v_park is not null or v_cleared then
      outcome := 'Busy'; next_from := null; next_due_from := null;
    elsif v_held or cardinality(v_key_at) > 0 then outcome := 'Held';
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
      null::bigint, null::timestamptz, null::bigint, null::bigint,
      seq, ctid, id, aggregate_type, aggregate_id, event_type, payload, payload_bytes, content_type, headers,
      destination, created_at, retry_count, max_retries, lost_count, 0::smallint,
      coalesce(seq = any(v_hold_seqs), false);
  get diagnostics v_n = row_count;
  if v_n <> cardinality(v_pick) then
    raise exception 'short claim: % of % rows', v_n, cardinality(v_pick) using errcode = '40001';
  end if;
end $outbox$;
revoke all on function {schema}.outbox_claim_v1(text, bigint, text, bigint, int, bigint, boolean, bigint, timestamptz,
  xid8[], bigint[], timestamptz[], boolean, int) from public;
