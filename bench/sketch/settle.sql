SELECT settle($1, $2::text[]::tid[])
