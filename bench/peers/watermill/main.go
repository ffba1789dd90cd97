// Watermill's SQL subscriber on PostgreSQL, offsets-based: one consumer group reads messages in order, SubscribeBatchSize
// at once in one transaction, each is acknowledged by itself, and the offset moves with the transaction: what was read and
// not committed is read again.
//
// Settings: SubscribeBatchSize = BATCH (100 by default; each batch is looked for among all that is left of the backlog),
// PollInterval and ResendInterval 1 ms (1 s by default; no wait while messages are there), AckDeadline off (saves a timer a
// message), pgx itself rather than database/sql.
//
// Usage: DATABASE_URL=… ROWS=… PAYLOAD=… KEYS=… BATCH=… watermill fill|drain. Keys are metadata, and mean nothing to it.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/jackc/pgx/v5/pgxpool"
)

const topic = "orders"

// In one transaction: in many the subscriber was no faster.
const fillRows = `
INSERT INTO watermill_orders (uuid, payload, metadata, transaction_id)
SELECT gen_random_uuid(), json_build_object('n', i, 'pad', repeat('x', $3)),
  json_build_object('key', (i::bigint * 7919 % $2)::text), pg_current_xact_id()
FROM generate_series(1, $1::int) i`

func main() {
	log.SetFlags(0)
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	defer pool.Close()
	switch mode := os.Args[len(os.Args)-1]; mode {
	case "fill":
		fill(ctx, pool)
	case "drain":
		drain(ctx, pool)
	default:
		log.Fatalf("fill or drain, not %q", mode)
	}
}

func subscriber(pool *pgxpool.Pool) *sql.Subscriber {
	noDeadline := time.Duration(0)
	subscriber, err := sql.NewSubscriber(sql.BeginnerFromPgx(pool), sql.SubscriberConfig{
		ConsumerGroup:  "bench",
		AckDeadline:    &noDeadline,
		PollInterval:   time.Millisecond,
		ResendInterval: time.Millisecond,
		SchemaAdapter:  sql.DefaultPostgreSQLSchema{SubscribeBatchSize: number("BATCH")},
		OffsetsAdapter: sql.DefaultPostgreSQLOffsetsAdapter{},
	}, nil)
	check(err)
	return subscriber
}

func fill(ctx context.Context, pool *pgxpool.Pool) {
	check(subscriber(pool).SubscribeInitialize(topic))
	_, err := pool.Exec(ctx, fillRows, number("ROWS"), number("KEYS"), max(number("PAYLOAD")-24, 1))
	check(err)
	_, err = pool.Exec(ctx, "VACUUM ANALYZE watermill_orders")
	check(err)
}

func drain(ctx context.Context, pool *pgxpool.Pool) {
	rows, subscriber := number("ROWS"), subscriber(pool)
	start := time.Now()
	messages, err := subscriber.Subscribe(ctx, topic)
	check(err)
	for range rows {
		message, open := <-messages
		if !open {
			log.Fatal("the subscriber ended early")
		}
		message.Ack()
	}
	untilCommitted(ctx, pool)
	fmt.Printf("%.1f\n", float64(rows)/time.Since(start).Seconds())
	check(subscriber.Close())
}

// The subscriber commits a batch after its last message's acknowledgement, unseen from here.
func untilCommitted(ctx context.Context, pool *pgxpool.Pool) {
	const settled = `SELECT offset_acked = (SELECT max("offset") FROM watermill_orders) FROM watermill_offsets_orders`
	for done := false; !done; {
		check(pool.QueryRow(ctx, settled).Scan(&done))
	}
}

func number(variable string) int {
	value, err := strconv.Atoi(os.Getenv(variable))
	if err != nil {
		log.Fatalf("%s: %v", variable, err)
	}
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
