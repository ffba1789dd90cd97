// goqite on SQLite: messages in the order in which they came, received and deleted one by one; one that was received and
// not deleted is received again after its timeout.
//
// Settings: the README's (WAL, one connection), synchronous = NORMAL as the relay has it, and ReceiveTx and DeleteTx for
// several messages in one transaction each, a transaction to receive and one to delete.
//
// Usage: DATABASE_URL=sqlite://… ROWS=… PAYLOAD=… KEYS=… BATCH=… goqite fill|drain.
package main

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	_ "github.com/mattn/go-sqlite3"
	"maragu.dev/goqite"
)

// More cost more: a search for the next message passes all that the transaction has received.
const mostAtOnce = 20

const fillRows = `
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
INSERT INTO goqite (queue, body)
SELECT 'events', CAST(json_object('n', i, 'key', i * 7919 % ?2, 'pad', printf('%.*c', ?3, 'x')) AS BLOB) FROM n`

func main() {
	log.SetFlags(0)
	path, found := strings.CutPrefix(os.Getenv("DATABASE_URL"), "sqlite://")
	if !found {
		log.Fatal("goqite takes part on SQLite only")
	}
	db, err := sql.Open("sqlite3", path+"?_journal=WAL&_timeout=5000&_fk=true&_sync=NORMAL")
	check(err)
	db.SetMaxOpenConns(1)
	defer db.Close()
	switch mode := os.Args[len(os.Args)-1]; mode {
	case "fill":
		fill(db)
	case "drain":
		drain(db)
	default:
		log.Fatalf("fill or drain, not %q", mode)
	}
}

func queue(db *sql.DB) *goqite.Queue {
	return goqite.New(goqite.NewOpts{DB: db, Name: "events", Timeout: time.Minute})
}

func fill(db *sql.DB) {
	_, err := db.Exec(schema())
	check(err)
	_, err = db.Exec(fillRows, number("ROWS"), number("KEYS"), max(number("PAYLOAD")-38, 1))
	check(err)
}

// The module's schema_sqlite.sql, which it leaves to be copied.
func schema() string {
	_, source, _, _ := runtime.Caller(0)
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "maragu.dev/goqite")
	list.Dir, list.Stderr = filepath.Dir(source), os.Stderr
	directory, err := list.Output()
	check(err)
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(directory)), "schema_sqlite.sql"))
	check(err)
	return string(text)
}

func drain(db *sql.DB) {
	rows, batch, queue := number("ROWS"), min(number("BATCH"), mostAtOnce), queue(db)
	start := time.Now()
	for done := 0; done < rows; {
		received := receive(db, queue, batch)
		if len(received) == 0 {
			log.Fatalf("%d of %d messages came", done, rows)
		}
		remove(db, queue, received)
		done += len(received)
	}
	fmt.Printf("%.1f\n", float64(rows)/time.Since(start).Seconds())
}

func receive(db *sql.DB, queue *goqite.Queue, most int) []*goqite.Message {
	tx, err := db.Begin()
	check(err)
	var received []*goqite.Message
	for len(received) < most {
		message, err := queue.ReceiveTx(context.Background(), tx)
		check(err)
		if message == nil {
			break
		}
		received = append(received, message)
	}
	check(tx.Commit())
	return received
}

func remove(db *sql.DB, queue *goqite.Queue, received []*goqite.Message) {
	tx, err := db.Begin()
	check(err)
	for _, message := range received {
		check(queue.DeleteTx(context.Background(), tx, message.ID))
	}
	check(tx.Commit())
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
