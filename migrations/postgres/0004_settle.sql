-- Settles a claim: every row of it must be named. p_ok: published. p_back: released. p_bad with p_kind R (retry), H (hold)
-- or F (failed), its delay and error. p_has_hold: a block waits for one
-- of its rows, as the claim said; followers that go out under a released block need no lock. p_gone: rows of the claim that
-- the caller has looked for by id and that exist no more. Returns how many rows it settled, or -1 when the claim is gone:
-- another owner has the rows.
create function {schema}.outbox_settle_v1(
    p_queue text, p_token bigint, p_ordered boolean, p_keep boolean, p_failed_blocks boolean, p_has_hold boolean,
    p_gone int, p_ok tid[], p_receipts text[], p_back tid[], p_bad tid[], p_kind text[], p_delay_ms bigint[], p_error text[])
  returns int language plpgsql
  set search_path = pg_catalog, pg_temp
  set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
  set enable_mergejoin = off set enable_hashjoin = off set jit = off
as $outbox$
declare v_tasks int; v_n int; v_done int := 0;
begin
  perform set_config('synchronous_commit', 'off', true); -- as an attribute of the function it would do nothing
  -- The fence. It also gives this transaction its id before it stamps a row with the clock.
  delete from {schema}.outbox_claims where token = p_token returning task_count into v_tasks;
  if not found then return -1; end if;

  if p_ordered and (p_has_hold or p_bad <> '{}' or p_back <> '{}') then
    perform from {schema}.outbox_queues where queue = p_queue for update;
  end if;
  if p_ordered and (p_has_hold or p_bad <> '{}') then
    -- the head itself is done
    update {schema}.outbox_blocked_keys b set released = true
    from (
      select aggregate_type a, aggregate_id i, seq from {schema}.outbox_tasks
      where claim_token = p_token and ctid = any(p_ok || case when p_failed_blocks then '{}'
        else array(select c from unnest(p_bad, p_kind) x(c, kind) where kind = 'F') end)) done
    where b.queue = p_queue and b.aggregate_type = done.a and b.aggregate_id = done.i and b.hold_after = done.seq;
    -- Grouped, because ON CONFLICT cannot touch a key twice. A released block below stays as it is: followers in between
    -- still wait, and the walk stops at this row and makes it the hold.
    insert into {schema}.outbox_blocked_keys as b (queue, aggregate_type, aggregate_id, hold_after, follow_from, reason)
    select p_queue, t.aggregate_type, t.aggregate_id, min(seq), min(seq), min(x.error)
    from unnest(p_bad, p_kind, p_error) x(c, kind, error) join {schema}.outbox_tasks t on t.ctid = x.c
    where t.claim_token = p_token and (kind <> 'F' or p_failed_blocks) group by 2, 3
    on conflict (queue, aggregate_type, aggregate_id) do update set
      hold_after = least(b.hold_after, excluded.hold_after),
      released = b.released and b.hold_after < excluded.hold_after,
      follow_from = least(b.follow_from, excluded.follow_from),
      reason = excluded.reason;
  end if;

  if p_bad <> '{}' then
    update {schema}.outbox_tasks t set
      status = case when kind = 'F' then 'FAILED' else 'PENDING' end::{schema}.outbox_status,
      retry_count = retry_count + (kind <> 'H' and retry_count < 2147483647)::int, last_error = error, claim_token = null, updated_at = now(),
      -- the clock, not now(): after the lock it is beyond every claimer's due_from
      available_at = case when kind = 'F' then null else clock_timestamp() + delay * interval '1 ms' end,
      settled_at = case when kind = 'F' then now() end,
      failed_at = case when kind = 'F' then now() end
    from unnest(p_bad, p_kind, p_delay_ms, p_error) x(c, kind, delay, error)
    where t.ctid = x.c and claim_token = p_token;
    get diagnostics v_n = row_count; v_done := v_done + v_n;
  end if;
  if p_ok <> '{}' then
    if p_keep then
      update {schema}.outbox_tasks t set
        status = 'PUBLISHED', settled_at = now(), updated_at = now(), receipt = x.receipt
      from unnest(p_ok, p_receipts) x(c, receipt) where t.ctid = x.c and claim_token = p_token;
    else
      delete from {schema}.outbox_tasks where ctid = any(p_ok) and claim_token = p_token;
    end if;
    get diagnostics v_n = row_count; v_done := v_done + v_n;
  end if;
  if p_back <> '{}' then
    -- Parked followers stay where they are in an ordered queue; what was due is stamped anew, to be found again.
    update {schema}.outbox_tasks set status = 'PENDING', claim_token = null, updated_at = now(),
      available_at = case when isfinite(available_at) or not p_ordered and available_at is not null
        then clock_timestamp() else available_at end
    where ctid = any(p_back) and claim_token = p_token;
    get diagnostics v_n = row_count; v_done := v_done + v_n;
  end if;

  if v_done + p_gone <> v_tasks then
    raise exception 'short settle: % of % rows', v_done + p_gone, v_tasks using errcode = '40001';
  end if;
  return v_done;
end $outbox$;
revoke all on function {schema}.outbox_settle_v1(text, bigint, boolean, boolean, boolean, boolean, int, tid[], text[],
  tid[], tid[], text[], bigint[], text[]) from public;
