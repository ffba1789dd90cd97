SELECT seq FROM {table} WHERE aggregate_type = ? AND aggregate_id = ?
