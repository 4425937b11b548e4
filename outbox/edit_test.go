package outbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// edit changes the payload of event 1, with meanwhile done after it was read.
func edit(t *testing.T, db *pgxpool.Pool, payload string, newKey *uuid.UUID, meanwhile string) (*outbox.Run, error) {
	t.Helper()
	ctx := context.Background()
	store := outbox.NewStore(db, "public")
	e, err := store.Editable(ctx, outbox.Ref{ID: 1})
	if err != nil {
		t.Fatal(err)
	}
	if meanwhile != "" {
		exec(t, db, meanwhile)
	}
	run, err := store.Begin(ctx, outbox.Operation{Command: "edit", Planned: 1})
	if err != nil {
		t.Fatal(err)
	}
	return run, run.Edit(ctx, e, []byte(payload), newKey)
}

func TestEditKeepsWhatItMust(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 2)
	exec(t, db, `update outbox set status = 'dead_letter', attempts = 3, finished_at = now(), error_kind = 'http', payload = '{"a": 1.10}' where id = 1`)
	exec(t, db, `create table was as select *, sha256(convert_to(payload::text, 'UTF8')) as hash from outbox where id = 1`)
	run, err := edit(t, db, `{"a": 1.100, "b": 12345678901234567890}`, nil, "")
	if err != nil || run.Progress.Done != 1 {
		t.Fatalf("Edit() = %+v, %v", run.Progress, err)
	}
	got := query[string](t, db, `select concat_ws(' ', o.payload, o.updated_at > was.updated_at,
		(to_jsonb(o) - '{payload,updated_at}'::text[]) = (to_jsonb(was) - '{payload,updated_at,hash}'::text[]), a.payload_hash = was.hash, a.action, a.status, a.attempts)
	  from outbox o, was, outbox_audit a where o.id = 1 and a.event_id = 1`)
	if want := `{"a": 1.100, "b": 12345678901234567890} t t t edit dead_letter 3`; got != want {
		t.Errorf("the event is %s, want %s", got, want)
	}
	key := uuid.New()
	if _, err := edit(t, db, `{}`, &key, ""); err != nil {
		t.Fatal(err)
	}
	if got := query[uuid.UUID](t, db, `select idempotency_key from outbox where id = 1`); got != key {
		t.Errorf("the key is %s, want %s", got, key)
	}
}

func TestEditLeavesAloneWhatHasChanged(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, meanwhile string
		want            error
		skipped         string
	}{
		{"claimed", `update outbox set status = 'in_progress', lease = 'w/1', lease_until = now() + interval '1 minute'`, outbox.ErrInFlight, outbox.SkipInFlight},
		{"delivered", `update outbox set status = 'delivered', finished_at = now()`, outbox.ErrChanged, outbox.SkipState},
		{"edited", `update outbox set payload = '{"b": 1}'`, outbox.ErrChanged, outbox.SkipState},
		{"touched", `update outbox set attempts = attempts`, outbox.ErrChanged, outbox.SkipState},
		{"purged", `delete from outbox`, outbox.ErrNotFound, outbox.SkipState},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db := outboxtest.DB(t)
			insert(t, db, 1)
			run, err := edit(t, db, `{"mine": 1}`, nil, tt.meanwhile)
			if !errors.Is(err, tt.want) || run.Progress.Done != 0 || run.Progress.Skipped[tt.skipped] != 1 {
				t.Errorf("Edit() = %+v, %v; want %v", run.Progress, err, tt.want)
			}
			if n := query[int](t, db, `select (select count(*) from outbox where payload ? 'mine') + (select count(*) from outbox_audit)`); n != 0 {
				t.Errorf("%d traces of the edit", n)
			}
		})
	}
}

func TestEditOfBytesAndOfALapsedLease(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 1)
	exec(t, db, `update outbox set payload = null, payload_bytes = '\x00ff', status = 'in_progress', lease = 'w/1', lease_until = now() - interval '1 s'`)
	if _, err := edit(t, db, "\x01\x02", nil, ""); err != nil {
		t.Fatal(err)
	}
	got := query[string](t, db, `select concat_ws(' ', o.payload_bytes, o.lease, o.status, a.payload_hash = sha256('\x00ff')) from outbox o, outbox_audit a`)
	if want := `\x0102 w/1 in_progress t`; got != want {
		t.Errorf("the event is %s, want %s", got, want)
	}
}
