package outbox_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// The function that producers share computes what a backfill does: with pgcrypto and without, for
// names of every length around the blocks of SHA-1.
func TestKeyFunctionIsBackfillKey(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `create schema "My ""crypto"""; create extension pgcrypto schema "My ""crypto"""`)
	for _, pgcrypto := range []string{"", `My "crypto"`} {
		exec(t, db, outbox.KeyFunction("public", pgcrypto))
		for n := range 140 {
			for _, key := range [][]string{{strings.Repeat("k", n)}, {"é" + strings.Repeat("7", n), "", "b"}} {
				got := query[uuid.UUID](t, db, `select public.outbox_backfill_key('public.orders', 'order.created', 1, variadic $1::text[])`, key)
				if want := outbox.BackfillKey("public.orders", "order.created", 1, key...); got != want {
					t.Fatalf("with pgcrypto %q, the key of %q is %s in SQL, %s in Go", pgcrypto, key, got, want)
				}
			}
		}
		if got := query[*uuid.UUID](t, db, `select public.outbox_backfill_key('public.orders', 'order.created', 1, '7', null)`); got != nil {
			t.Errorf("a row without a key has %s", got)
		}
	}
}

func TestBackfillKey(t *testing.T) {
	t.Parallel()
	key := outbox.BackfillKey("public.orders", "order.created", 1, "42")
	if want := "000ddda8-c214-5ce5-bb11-6232179cbc17"; key.String() != want { // fixed for ever: consumers remember it
		t.Errorf("the key of order 42 is %s, want %s", key, want)
	}
	if key.Version() != 5 || key.Variant() != uuid.RFC4122 {
		t.Errorf("version %d, variant %s", key.Version(), key.Variant())
	}
	for _, other := range []uuid.UUID{
		outbox.BackfillKey("public.orders", "order.created", 2, "42"),
		outbox.BackfillKey("public.orders", "order.paid", 1, "42"),
		outbox.BackfillKey("shop.orders", "order.created", 1, "42"),
		outbox.BackfillKey("public.orders", "order.created", 1, "4", "2"),
		outbox.BackfillKey("public.orders", "order.created", 1, "42", ""),
	} {
		if other == key {
			t.Errorf("two rows have the key %s", key)
		}
	}
}

// No name ends the quotes around the function's body, so that what follows would be a statement.
func TestKeyFunctionsBodyIsClosedByNoName(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	exec(t, db, `create table victim (id int)`)
	for _, name := range []string{`$body$; drop table victim; --`, `$_body$; drop table victim; -- $body$`, `"; drop table victim; --`, `{schema}{namespace}`} {
		exec(t, db, outbox.KeyFunction("public", name))
	}
	if query[bool](t, db, `select to_regclass('victim') is null`) {
		t.Error("the victim is gone")
	}
}
