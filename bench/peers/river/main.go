// River on PostgreSQL: jobs without an order, fetched for as many workers as are free, done in a worker that does nothing,
// and completed in batches by UPDATE; a job that was fetched and not completed runs again. It keeps completed jobs.
//
// Settings: those of River's own benchmark command: MaxWorkers 2,000, FetchCooldown 2 ms (100 ms by default) and
// FetchPollInterval 20 ms (1 s by default). Jobs come by InsertManyFast (COPY).
//
// Usage: DATABASE_URL=… ROWS=… PAYLOAD=… KEYS=… river fill|drain. BATCH has no counterpart.
package main

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

type event struct {
	N   int    `json:"n"`
	Key string `json:"key"`
	Pad string `json:"pad"`
}

func (event) Kind() string { return "event" }

type nothing struct{ river.WorkerDefaults[event] }

func (*nothing) Work(context.Context, *river.Job[event]) error { return nil }

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

func client(pool *pgxpool.Pool) *river.Client[pgx.Tx] {
	workers := river.NewWorkers()
	river.AddWorker(workers, &nothing{})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown:     2 * time.Millisecond,
		FetchPollInterval: 20 * time.Millisecond,
		Logger:            slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2_000}},
		Workers:           workers,
	})
	check(err)
	return client
}

func fill(ctx context.Context, pool *pgxpool.Pool) {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	check(err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	check(err)
	client, rows, keys, pad := client(pool), number("ROWS"), number("KEYS"), strings.Repeat("x", max(number("PAYLOAD")-38, 1))
	for from := 0; from < rows; from += 10_000 {
		var jobs []river.InsertManyParams
		for n := from; n < min(from+10_000, rows); n++ {
			jobs = append(jobs, river.InsertManyParams{Args: event{n, strconv.Itoa(n * 7919 % keys), pad}})
		}
		_, err := client.InsertManyFast(ctx, jobs)
		check(err)
	}
	_, err = pool.Exec(ctx, "VACUUM ANALYZE river_job")
	check(err)
}

func drain(ctx context.Context, pool *pgxpool.Pool) {
	rows, client := number("ROWS"), client(pool)
	// Events follow the UPDATE. One that finds no room is lost.
	completed, cancel := client.SubscribeConfig(&river.SubscribeConfig{
		ChanSize: rows,
		Kinds:    []river.EventKind{river.EventKindJobCompleted},
	})
	defer cancel()
	start := time.Now()
	check(client.Start(ctx))
	for range rows {
		<-completed
	}
	fmt.Printf("%.1f\n", float64(rows)/time.Since(start).Seconds())
	check(client.Stop(ctx))
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
