select {schema}.outbox_recover_orphans_v1($1, $2)
