select version, breaking from {schema}.outbox_migrations order by version
