-- The outbox from any language: one call in the transaction that changes the business data.
--
--   select outbox_enqueue('Order', '101', '{"total": 4200}', event_type => 'OrderCreated');
--
-- Only the first two arguments are needed, and NULL means the default of each of the others. At most one of payload and
-- payload_bytes (neither: a tombstone), of delay and available_at, of idempotency_key and id. Returns the event's id; NULL
-- when a row with it was there already, which is then left as it is.
--
-- Runs with the rights of the caller: INSERT on outbox_tasks is needed and enough, so that EXECUTE for PUBLIC gives nobody
-- anything. No RETURNING and no conflict target, since both take the right to read.
create function {schema}.outbox_enqueue(
    aggregate_type text, aggregate_id text, payload json default null, event_type text default null,
    headers json default null, destination text default null, queue text default null, delay interval default null,
    available_at timestamptz default null, max_retries int default null, priority int default null,
    content_type text default null, idempotency_key text default null, id uuid default null,
    payload_bytes bytea default null)
  returns uuid language plpgsql
  set search_path = pg_catalog, pg_temp
as $outbox$
declare
  v_queue text := coalesce(queue, 'default');
  v_wrong text;
  v_hint text;
  v_hash bytea;
  v_id uuid;
  v_rows bigint;
begin
  -- The limits are those of the crate outbox-schema.
  select case
      when value is null then format('%s: must not be NULL', name)
      when octet_length(value) > most then format('%s: %s bytes, at most %s are allowed', name, octet_length(value), most)
      when value = '' then format('%s: must not be empty', name)
      else format('%s: must not contain CR or LF', name)
    end,
    case
      when value is null then 'Type and id of what the event is about are its ordering key: ''Order'' and ''101'', for example.'
      when octet_length(value) > most then 'Brokers and indexes hold no more: put what is long into the payload.'
      when value = '' and needed then 'Type and id of what the event is about are its ordering key: ''Order'' and ''101'', for example.'
      when value = '' then 'Leave the argument out, or pass NULL, for its default.'
      else 'It may end up in a header or an address of the broker.'
    end
  into v_wrong, v_hint
  from (values
      ('aggregate_type', aggregate_type, 255, true), ('aggregate_id', aggregate_id, 1024, true),
      ('event_type', event_type, 255, false), ('queue', queue, 128, false), ('destination', destination, 1024, false),
      ('content_type', content_type, 255, false), ('idempotency_key', idempotency_key, 1024, false))
    argument (name, value, most, needed)
  where value is null and needed or octet_length(value) > most or value = '' or value ~ E'[\r\n]'
  limit 1;

  if v_wrong is null and headers is not null then
    if json_typeof(headers) <> 'object' then
      v_wrong := format('headers: is a JSON %s', json_typeof(headers));
      v_hint := 'Give an object of strings: ''{"tenant": "acme"}''.';
    elsif headers::text ~ E'(^|[^\\\\])(\\\\\\\\)*\\\\u0000' then
      v_wrong := 'headers: must not contain NUL';
      v_hint := 'Put it into the payload, if it must be.';
    elsif (select count(*) from json_each(headers)) > 64 then
      v_wrong := format('headers: %s headers, at most 64 are allowed', (select count(*) from json_each(headers)));
      v_hint := 'Put what belongs to the event into the payload.';
    else
      select case
          when octet_length(key) > 255
            then format('headers: a name of %s bytes, at most 255 are allowed', octet_length(key))
          when key !~ E'^[A-Za-z0-9!#$%&''*+.^_`|~-]+$' then format('headers: %s is no name', to_json(key))
          when key ~* '^outbox-' then format('headers: %s is a name of the relay''s own', to_json(key))
          when json_typeof(value) <> 'string' then format('headers: %s is a JSON %s', to_json(key), json_typeof(value))
          when octet_length(value #>> '{}') > 4096 then format('headers: %s has %s bytes, at most 4096 are allowed',
            to_json(key), octet_length(value #>> '{}'))
          else format('headers: %s must not contain CR or LF', to_json(key))
        end,
        case
          when octet_length(key) > 255 or octet_length(value #>> '{}') > 4096
            then 'Put what belongs to the event into the payload.'
          when key !~ E'^[A-Za-z0-9!#$%&''*+.^_`|~-]+$'
            then 'Names are made of ASCII letters, digits and !#$%&''*+-.^_`|~, as in HTTP.'
          when key ~* '^outbox-' then 'Take a name that does not begin with outbox-.'
          when json_typeof(value) <> 'string' then 'Values are strings: "1", not 1.'
          else 'It would end the header.'
        end
      into v_wrong, v_hint
      from json_each(headers)
      where octet_length(key) > 255 or key !~ E'^[A-Za-z0-9!#$%&''*+.^_`|~-]+$' or key ~* '^outbox-'
        or json_typeof(value) <> 'string' or octet_length(value #>> '{}') > 4096 or value #>> '{}' ~ E'[\r\n]'
      limit 1;
    end if;
  end if;

  if v_wrong is not null then
    null;
  elsif payload is not null and payload_bytes is not null then
    v_wrong := 'payload: given together with payload_bytes';
    v_hint := 'Give JSON or bytes; neither makes a tombstone.';
  elsif coalesce(octet_length(payload::text), octet_length(payload_bytes)) > 16777216 then
    v_wrong := format('payload: %s bytes, at most 16777216 are allowed',
      coalesce(octet_length(payload::text), octet_length(payload_bytes)));
    v_hint := 'Put it elsewhere and send where it is.';
  elsif delay is not null and available_at is not null then
    v_wrong := 'delay: given together with available_at';
    v_hint := 'Give one: from now on, or until when.';
  elsif delay < interval '0' then
    v_wrong := 'delay: must not be negative';
    v_hint := 'Leave it out for an event that may go at once.';
  elsif delay > interval '3650 days' or available_at > clock_timestamp() + interval '3650 days' then
    v_wrong := case when delay is null then 'available_at' else 'delay' end || ': at most 3650 days are allowed';
    v_hint := 'An event is no place to keep things for years.';
  elsif max_retries < 0 then
    v_wrong := format('max_retries: is %s, must not be negative', max_retries);
    v_hint := '0 means one try; NULL is the queue''s setting.';
  elsif priority not between -32768 and 32767 then
    v_wrong := format('priority: is %s, must be from -32768 to 32767', priority);
    v_hint := 'Above 0 goes first, in queues without order.';
  elsif idempotency_key is not null and id is not null then
    v_wrong := 'id: given together with idempotency_key';
    v_hint := 'The key makes the id: give one of them.';
  end if;
  if v_wrong is not null then
    raise exception using message = v_wrong, hint = v_hint, errcode = 'invalid_parameter_value';
  end if;

  if idempotency_key is not null then -- a UUIDv8 of a hash
    v_hash := substring(sha256(
      convert_to(v_queue, 'UTF8') || E'\\x00'::bytea || convert_to(idempotency_key, 'UTF8')) for 16);
    v_id := encode(set_byte(set_byte(v_hash, 6, get_byte(v_hash, 6) & 15 | 128), 8, get_byte(v_hash, 8) & 63 | 128),
      'hex')::uuid;
  elsif id is not null then
    v_id := id;
  else -- a UUIDv7: milliseconds, then what gen_random_uuid gives, whose version 4 becomes 7 by two more bits
    v_id := encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
      placing substring(int8send(floor(extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6),
      52, 1), 53, 1), 'hex')::uuid;
  end if;

  insert into {schema}.outbox_tasks (id, queue, aggregate_type, aggregate_id, event_type, payload, payload_bytes,
    content_type, headers, destination, max_retries, priority, available_at)
  values (v_id, v_queue, aggregate_type, aggregate_id, event_type, payload, payload_bytes, content_type, headers,
    destination, max_retries, coalesce(priority, 0),
    -- the clock, not now(): the transaction may have begun long ago
    case when delay > interval '0' then clock_timestamp() + delay else available_at end)
  on conflict do nothing;
  get diagnostics v_rows = row_count;
  return case when v_rows = 1 then v_id end;
end $outbox$;

-- Whatever the database's default privileges are.
grant execute on function {schema}.outbox_enqueue(text, text, json, text, json, text, text, interval, timestamptz, int, int,
  text, text, uuid, bytea) to public;
