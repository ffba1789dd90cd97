SELECT claimed_seq, claimed_ctid::text, claimed_type, claimed_id, claimed_payload::text FROM claim('default', $1, $2, $3)
