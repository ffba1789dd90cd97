select current_setting('server_version_num')::int4, current_setting('default_transaction_isolation'), pg_is_in_recovery()
