select * from {schema}.outbox_sweep_v1($1, $2, $3, $4)
