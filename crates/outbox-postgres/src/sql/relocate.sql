select id, pg_catalog.tidsend(ctid) from {schema}.outbox_tasks where id = any($1) and claim_token = $2 and status = 'PROCESSING'
