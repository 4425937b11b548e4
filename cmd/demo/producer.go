package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
)

const (
	placed     = 300 // orders that customers place
	declinedAt = 10  // every tenth is rolled back, its event with it
	crashAt    = 123 // the shop crashes between this order and its event
	oddAt      = 234 // this order has a currency that the receiver refuses
	pace       = 5 * time.Millisecond
)

// order is what the shop stores, and what its events carry.
type order struct {
	ID          int64  `json:"order_id"`
	CustomerID  string `json:"customer_id"`
	AmountCents int    `json:"amount_cents"`
	Currency    string `json:"currency"`
}

func newOrder(id int64) order {
	o := order{ID: id, CustomerID: fmt.Sprintf("customer-%d", id%17), AmountCents: int(1999 + 37*id), Currency: "EUR"}
	if id == oddAt {
		o.Currency = oddCurrency
	}
	return o
}

// producer is the shop: it places orders, one transaction each.
type producer struct {
	db   *pgxpool.Pool
	done chan struct{} // closed when all orders are placed
	err  error         // set when done is closed
}

const ordersSQL = `
create table orders (
  id           bigint primary key,
  customer_id  text not null,
  amount_cents int not null,
  currency     text not null
)`

func (p *producer) createTable(ctx context.Context) error {
	_, err := p.db.Exec(ctx, ordersSQL)
	return err
}

// start places the orders beside the caller, who waits for the end with the returned function.
func (p *producer) start(ctx context.Context) (wait func()) {
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		p.err = p.placeAll(ctx, 0, placed)
	}()
	return func() { <-p.done }
}

// placeAll places the orders after the one and up to the other.
func (p *producer) placeAll(ctx context.Context, after, last int64) error {
	for id := after + 1; id <= last; id++ {
		err := p.place(ctx, newOrder(id))
		if err != nil && !errors.Is(err, errDeclined) && !errors.Is(err, errCrashed) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pace):
		}
	}
	return nil
}

var (
	errDeclined = errors.New("the customer's card was declined")
	errCrashed  = errors.New("the shop crashed")
)

const orderSQL = `
insert into orders (id, customer_id, amount_cents, currency)
values ($1, $2, $3, $4)`

// place is all that the outbox asks of an application: the order and its event in one transaction.
func (p *producer) place(ctx context.Context, o order) error {
	return pgx.BeginFunc(ctx, p.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, orderSQL, o.ID, o.CustomerID, o.AmountCents, o.Currency); err != nil {
			return err
		}
		if o.ID == crashAt {
			return crash(tx)
		}
		if err := ways[o.ID%int64(len(ways))](ctx, tx, o); err != nil {
			return err
		}
		if o.ID%declinedAt == 0 {
			return errDeclined
		}
		return nil
	})
}

// crash is what PostgreSQL sees of a process that dies: the connection is gone.
func crash(tx pgx.Tx) error {
	tx.Conn().PgConn().Conn().Close()
	return errCrashed
}

// ways are how an application may write an event. They come to the same row.
var ways = []func(context.Context, pgx.Tx, order) error{withAppend, withFunction, withInsert}

// withAppend is for applications in Go.
func withAppend(ctx context.Context, tx pgx.Tx, o order) error {
	payload, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return outbox.Append(ctx, tx, outbox.Event{
		AggregateType: "order", AggregateID: fmt.Sprint(o.ID), Type: "order.created", Payload: payload,
	})
}

const functionSQL = `
select outbox_emit('order', $1, 'order.created', $2)`

// withFunction is for any language, and for triggers.
func withFunction(ctx context.Context, tx pgx.Tx, o order) error {
	_, err := tx.Exec(ctx, functionSQL, fmt.Sprint(o.ID), o)
	return err
}

const insertSQL = `
insert into outbox (aggregate_type, aggregate_id, event_type, idempotency_key, payload)
values ('order', $1, 'order.created', $2, $3)`

// withInsert needs nothing but the table.
func withInsert(ctx context.Context, tx pgx.Tx, o order) error {
	_, err := tx.Exec(ctx, insertSQL, fmt.Sprint(o.ID), uuid.New(), o)
	return err
}
