package outbox_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestAppendChangesNoText has texts that encoding/json would write as others: they are refused, so
// that two aggregates never become one.
func TestAppendChangesNoText(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	good := outbox.Event{TenantID: "acme", AggregateType: "order", AggregateID: "é <&> 🧾 \u2028", Type: "order.created", Payload: []byte(`{"a":"<&> é"}`)}
	for _, tt := range []struct {
		name   string
		change func(*outbox.Event)
		want   string // in the error; "" = taken
	}{
		{"nothing odd", func(*outbox.Event) {}, ""},
		{"tenant", func(ev *outbox.Event) { ev.TenantID = "\xff" }, "not UTF-8"},
		{"aggregate", func(ev *outbox.Event) { ev.AggregateID = "a\xc3" }, "not UTF-8"},
		{"type", func(ev *outbox.Event) { ev.Type = "\xed\xa0\x80" }, "not UTF-8"},
		{"payload", func(ev *outbox.Event) { ev.Payload = []byte("\"\xff\"") }, "not JSON in UTF-8"},
		{"a NUL", func(ev *outbox.Event) { ev.AggregateID = "a\x00" }, "22P05"},
	} {
		ev := good
		tt.change(&ev)
		err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return outbox.Append(t.Context(), tx, ev) })
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q in it", tt.name, err, tt.want)
		}
	}
	var same bool
	err := db.QueryRow(t.Context(), `select aggregate_id = $1 and payload = '{"a": "<&> é"}' from outbox`, good.AggregateID).Scan(&same)
	if err != nil || !same {
		t.Errorf("the text arrives unchanged: %v, %v", same, err)
	}
}
