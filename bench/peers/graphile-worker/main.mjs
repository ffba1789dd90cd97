// Graphile Worker on PostgreSQL: jobs without a queue, so without an order, fetched in batches into a local queue, done by
// a task that does nothing and deleted in batches; a job that was locked and not deleted runs again, after four hours.
//
// Settings: those of the performance page of its documentation: concurrentJobs 24, maxPoolSize 25, localQueue.size 500,
// completeJobBatchDelay 0 and failJobBatchDelay 0; localQueue.size is BATCH here.
//
// Usage: DATABASE_URL=… ROWS=… PAYLOAD=… KEYS=… BATCH=… node main.mjs fill|drain.
import { Logger, runMigrations, runOnce } from "graphile-worker";
import pg from "pg";

const number = (variable) => {
  const value = Number.parseInt(process.env[variable], 10);
  if (Number.isNaN(value)) throw new Error(`${variable} is no number`);
  return value;
};

const rows = number("ROWS");
const connectionString = process.env.DATABASE_URL;
const options = {
  logger: new Logger(() => (level, message) => level === "error" && console.error(message)),
  noHandleSignals: true,
  preset: {
    worker: {
      connectionString,
      concurrentJobs: 24,
      maxPoolSize: 25,
      localQueue: { size: number("BATCH") },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  },
};

const addJobs = `
SELECT count(*) FROM graphile_worker.add_jobs((
  SELECT array_agg((
    'event', json_build_object('n', i, 'key', (i::bigint * 7919 % $2)::text, 'pad', repeat('x', $3)),
    NULL, NULL, NULL, NULL, NULL, NULL)::graphile_worker.job_spec)
  FROM generate_series(1, $1::int) i))`;

const query = async (text, values) => {
  const client = new pg.Client({ connectionString });
  await client.connect();
  try {
    return (await client.query(text, values)).rows;
  } finally {
    await client.end();
  }
};

const fill = async () => {
  await runMigrations(options);
  await query(addJobs, [rows, number("KEYS"), Math.max(number("PAYLOAD") - 38, 1)]);
  await query("VACUUM ANALYZE graphile_worker._private_jobs");
};

const drain = async () => {
  let done = 0;
  const start = performance.now();
  await runOnce({ ...options, taskList: { event: () => void (done += 1) } });
  const seconds = (performance.now() - start) / 1000;
  const [{ left }] = await query("SELECT count(*)::int AS left FROM graphile_worker._private_jobs");
  if (done !== rows || left !== 0) throw new Error(`${done} of ${rows} jobs ran, ${left} are left`);
  console.log((rows / seconds).toFixed(1));
};

const modes = { fill, drain };
const mode = modes[process.argv[2]];
if (!mode) throw new Error("fill or drain");
await mode();
