select * from {schema}.outbox_claim_unordered_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
