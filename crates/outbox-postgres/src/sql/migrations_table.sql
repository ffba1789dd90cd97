do $outbox$ begin
  -- CREATE SCHEMA IF NOT EXISTS would ask for the right to create one even where it exists.
  if not exists (select from pg_catalog.pg_namespace where nspname = {schema_literal}) then
    create schema {schema};
  end if;
end $outbox$;
create table if not exists {schema}.outbox_migrations (
  version bigint primary key,
  name text not null,
  breaking boolean not null,
  applied_at timestamptz not null default now()
);
