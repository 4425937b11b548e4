package main_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// produceUntil is a variable that makes the test binary a producer, which stops for good after the
// step that it names.
const produceUntil = "OUTBOXCTL_TEST_PRODUCE_UNTIL"

// TestCrashedProducerLeavesNeitherOrderNorEvent kills a producer in each moment of its transaction.
func TestCrashedProducerLeavesNeitherOrderNorEvent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		until string // the last thing that it did
		want  int    // orders and events that there are
	}{
		{"order", 0},
		{"event", 0},
		{"commit", 1},
	} {
		t.Run("after the "+tt.until, func(t *testing.T) {
			t.Parallel()
			url, db := database(t)
			execute(t, db, `create table orders (id text primary key)`)
			killProducer(t, url, tt.until)
			eventually(t, "the server notices", func() bool {
				return query[int](t, db, `select count(*) from pg_stat_activity where application_name = 'producer' and datname = current_database()`) == 0
			})
			r := outboxtest.NewReceiver(t, nil)
			if code, words := once(t, url, r.URL); code != 0 {
				t.Fatalf("exit code %d, want 0: %s", code, words)
			}
			orders := query[int](t, db, `select count(*) from orders`)
			if delivered := count(t, db, "delivered"); orders != tt.want || delivered != tt.want || r.Count() != tt.want {
				t.Errorf("%d orders, %d events delivered in %d requests, want %d of each", orders, delivered, r.Count(), tt.want)
			}
		})
	}
}

// killProducer starts a producer and kills it (SIGKILL) after a step.
func killProducer(t *testing.T, url, until string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), produceUntil+"="+until, "DATABASE_URL="+url)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	step, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || step != until+"\n" {
		t.Errorf("the producer says %q (%v), want %q", step, err, until)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
}

// produce writes an order and its event in one transaction, as an application does.
func produce() {
	ctx := context.Background()
	config, err := pgx.ParseConfig(os.Getenv("DATABASE_URL"))
	must(err)
	config.RuntimeParams["application_name"] = "producer"
	conn, err := pgx.ConnectConfig(ctx, config)
	must(err)
	tx, err := conn.Begin(ctx)
	must(err)
	_, err = tx.Exec(ctx, `insert into orders (id) values ('42')`)
	must(err)
	after("order")
	must(outbox.Append(ctx, tx, outbox.Event{
		AggregateType: "order", AggregateID: "42", Type: "order.created", Payload: []byte(`{"id": "42"}`),
	}))
	after("event")
	must(tx.Commit(ctx))
	after("commit")
}

// after says that a step is done and, if it is the one, waits to be killed.
func after(step string) {
	if os.Getenv(produceUntil) == step {
		fmt.Println(step)
		time.Sleep(time.Hour)
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
