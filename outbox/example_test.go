package outbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// What stands between two lines of --- is in docs/producers.md word for word, which a test holds.

// --- event

type order struct {
	ID       int64  `json:"order_id"`
	Customer string `json:"customer_id"`
	Amount   int64  `json:"amount_cents"`
}

func (o order) created() (outbox.Event, error) {
	payload, err := json.Marshal(o)
	return outbox.Event{
		AggregateType: "order",
		AggregateID:   fmt.Sprint(o.ID),
		Type:          "order.created",
		Payload:       payload,
	}, err
}

// --- pgx

func place(ctx context.Context, db *pgxpool.Pool, o order) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error { // commits, or rolls back on an error
		_, err := tx.Exec(ctx, `insert into orders (id, customer_id, amount_cents) values ($1, $2, $3)`,
			o.ID, o.Customer, o.Amount)
		if err != nil {
			return err
		}
		created, err := o.created()
		if err != nil {
			return err
		}
		return outbox.Append(ctx, tx, created)
	})
}

// --- database/sql

func placeSQL(ctx context.Context, db *sql.DB, o order) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after the commit
	_, err = tx.ExecContext(ctx, `insert into orders (id, customer_id, amount_cents) values ($1, $2, $3)`,
		o.ID, o.Customer, o.Amount)
	if err != nil {
		return err
	}
	created, err := o.created()
	if err != nil {
		return err
	}
	if err := outbox.AppendSQL(ctx, tx, created); err != nil {
		return err
	}
	return tx.Commit()
}

// --- end

// TestExamplesWriteOrderAndEventOrNeither runs what the page shows.
func TestExamplesWriteOrderAndEventOrNeither(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	if _, err := db.Exec(t.Context(), `create table orders (id bigint primary key, customer_id text, amount_cents bigint)`); err != nil {
		t.Fatal(err)
	}
	std := stdlib.OpenDBFromPool(db)
	defer std.Close()
	ways := []func(o order) error{
		func(o order) error { return place(t.Context(), db, o) },
		func(o order) error { return placeSQL(t.Context(), std, o) },
	}
	for i, place := range ways {
		o := order{ID: int64(i + 1), Customer: "c-7", Amount: 1999}
		if err := place(o); err != nil {
			t.Errorf("way %d: %v", i, err)
		}
		if err := place(o); err == nil {
			t.Errorf("way %d: the same order twice is no error", i)
		}
	}
	var got string
	err := db.QueryRow(t.Context(), `
select string_agg(format('%s %s %s %s', aggregate_type, aggregate_id, event_type, payload), ' | ' order by e.id)
  from outbox e
  join orders o on o.id = (e.payload ->> 'order_id')::bigint`).Scan(&got)
	want := `order 1 order.created {"order_id": 1, "customer_id": "c-7", "amount_cents": 1999} | ` +
		`order 2 order.created {"order_id": 2, "customer_id": "c-7", "amount_cents": 1999}`
	if err != nil || got != want {
		t.Errorf("orders and their events: %s, %v\nwant %s", got, err, want)
	}
}
