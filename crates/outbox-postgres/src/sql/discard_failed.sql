select {schema}.outbox_discard_failed_v1($1, $2, $3)
