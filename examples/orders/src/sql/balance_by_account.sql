SELECT cents, applied, duplicates FROM balances WHERE account_id = $1
