select {schema}.outbox_retry_failed_v1($1, $2)
