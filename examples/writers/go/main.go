// Places an order on PostgreSQL: go run . URL ORDER [--rollback]
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"slices"

	"github.com/jackc/pgx/v5"
)

// docs: begin

// placeOrder inserts the order and tells of it, in the caller's transaction. nil: it was told already.
func placeOrder(ctx context.Context, tx pgx.Tx, orderID string, totalCents int64) (*string, error) {
	_, err := tx.Exec(ctx, "INSERT INTO orders (id, total_cents) VALUES ($1, $2)", orderID, totalCents)
	if err != nil {
		return nil, err
	}
	return tell(ctx, tx, orderID, totalCents)
}

func tell(ctx context.Context, tx pgx.Tx, orderID string, totalCents int64) (*string, error) {
	var id *string
	err := tx.QueryRow(ctx,
		`SELECT outbox_enqueue('Order', $1, $2,
		    event_type => 'OrderCreated', idempotency_key => $3)::text`,
		orderID, map[string]int64{"total_cents": totalCents}, "order:"+orderID+":created",
	).Scan(&id)
	return id, err
}

// docs: end

var errRolledBack = errors.New("rolled back")

func run(ctx context.Context, url, orderID string, rollback bool) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		id, err := placeOrder(ctx, tx, orderID, 4200)
		if err != nil {
			return err
		}
		again, err := tell(ctx, tx, orderID, 4200)
		if err != nil {
			return err
		}
		fmt.Println("enqueued", text(id))
		fmt.Println("again", text(again))
		if rollback {
			return errRolledBack
		}
		return nil
	})
}

func text(id *string) string {
	if id == nil {
		return "nil"
	}
	return *id
}

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: writer URL ORDER [--rollback]")
	}
	err := run(context.Background(), os.Args[1], os.Args[2], slices.Contains(os.Args[3:], "--rollback"))
	if errors.Is(err, errRolledBack) {
		fmt.Println("rolled back")
	} else if err != nil {
		log.Fatal(err)
	}
}
