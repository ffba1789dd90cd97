select {schema}.outbox_purge_v1($1, $2, $3, $4)
