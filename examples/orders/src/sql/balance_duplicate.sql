UPDATE balances SET duplicates = duplicates + 1 WHERE account_id = $1
