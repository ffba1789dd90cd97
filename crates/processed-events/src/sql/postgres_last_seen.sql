SELECT seq FROM {table} WHERE aggregate_type = $1 AND aggregate_id = $2
