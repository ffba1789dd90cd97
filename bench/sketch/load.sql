INSERT INTO tasks (aggregate_type, aggregate_id, payload)
SELECT 'Order', (i::bigint * 7919 % $2)::text, json_build_object('n', i, 'pad', repeat('x', $3))
FROM generate_series(1, $1::int) i
