package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

func TestShowFindsByIDAndByKey(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	store := outbox.NewStore(db, "public")
	insert(t, db, 3)
	exec(t, db, `update outbox set idempotency_key = (select idempotency_key from outbox where id = 1), destination = 'crm' where id = 2`)
	key := func(id int) uuid.UUID {
		return query[uuid.UUID](t, db, `select idempotency_key from outbox where id = $1`, id)
	}
	for _, ref := range []outbox.Ref{{ID: 3}, {Key: key(3)}} {
		d, err := store.Show(ctx, ref)
		if err != nil || d.Row.ID != 3 || d.Row.AggregateType == "" || len(d.Siblings) != 0 || !d.Content.Readable {
			t.Errorf("Show(%s) = %+v, %v", ref, d, err)
		}
	}
	d, err := store.Show(ctx, outbox.Ref{ID: 1})
	if err != nil || len(d.Siblings) != 1 || d.Siblings[0].ID != 2 {
		t.Errorf("siblings of 1 = %+v, %v", d, err)
	}
	var several *outbox.SeveralError
	if _, err := store.Show(ctx, outbox.Ref{Key: key(1)}); !errors.As(err, &several) || len(several.Rows) != 2 {
		t.Errorf("a key at two destinations: %v", err)
	}
	for _, ref := range []outbox.Ref{{ID: 99}, {Key: uuid.New()}} {
		if _, err := store.Show(ctx, ref); !errors.Is(err, outbox.ErrNotFound) {
			t.Errorf("Show(%s) = %v, want ErrNotFound", ref, err)
		}
	}
}

// Every attempt is there, the one that delivered too, of which only the row tells.
func TestShowHasTheHistory(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	insert(t, db, 1)
	exec(t, db, `insert into outbox_attempts (event_id, attempt, lease, destination, at, outcome, error_kind, error_code, error, latency)
		select 1, i, 'a/b/' || i, '', now() - interval '1 h', 'pending', 'http', 503, 'answered 503', '1500 us' from generate_series(1, 1002) i`)
	exec(t, db, `update outbox set status = 'delivered', attempts = 1003, finished_at = now(), receipt = '200'`)
	d, err := outbox.NewStore(db, "public").Show(ctx, outbox.Ref{ID: 1})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range []outbox.Attempt{d.Attempts[0], d.Attempts[999], d.Attempts[1000]} {
		got = append(got, fmt.Sprint(a.Number, " ", a.Outcome, " ", a.ErrorKind, a.ErrorCode, " ", a.Error, " ", a.Latency, " ", a.Worker))
	}
	want := []string{"3 pending http503 answered 503 1.5ms a/b", "1002 pending http503 answered 503 1.5ms a/b", "1003 delivered 0 200 0s "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the first, the last but one and the last of the newest (-want +got):\n%s", diff)
	}
}

func TestRevealIsNoted(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	insert(t, db, 1)
	exec(t, db, `update outbox set payload = '{"a": 1.10}', headers = '{"b": "c"}'`)
	run, err := outbox.NewStore(db, "public").Begin(ctx, outbox.Operation{Command: "reveal", Reason: "ticket", Planned: 1})
	if err != nil {
		t.Fatal(err)
	}
	c, err := run.Reveal(ctx, 1)
	if err != nil || string(c.Payload) != `{"a": 1.10}` || string(c.Headers) != `{"b": "c"}` || c.Binary {
		t.Errorf("Reveal() = %+v, %v", c, err)
	}
	if _, err := run.Reveal(ctx, 99); !errors.Is(err, outbox.ErrNotFound) {
		t.Errorf("of an event that is gone: %v", err)
	}
	d, err := outbox.NewStore(db, "public").Show(ctx, outbox.Ref{ID: 1})
	if err != nil || len(d.Notes) != 1 {
		t.Fatalf("Show() = %+v, %v", d, err)
	}
	if n := d.Notes[0]; n.Action != "reveal" || n.Operation != run.ID || n.Reason != "ticket" || n.Status != outbox.Pending || n.PayloadHash != nil {
		t.Errorf("the note is %+v", n)
	}
}

// A role that may see how events are doing and not what they say sees that much.
func TestShowAsReader(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	insert(t, db, 1)
	role := "reader_" + query[string](t, db, `select current_database()`)
	exec(t, db, fmt.Sprintf(`
create role %[1]s; grant usage on schema public to %[1]s;
grant select (id, source_id, tenant_id, aggregate_type, aggregate_id, event_type, schema_version, idempotency_key, destination, status, attempts,
              available_at, next_attempt_at, lease, lease_until, last_attempt_at, finished_at, created_at, updated_at, receipt, error, error_kind, error_code, origin)
   on outbox to %[1]s;
grant select (id, source_id, tenant_id, aggregate_type, aggregate_id, event_type, schema_version, idempotency_key, destination, status, attempts,
              available_at, next_attempt_at, last_attempt_at, finished_at, created_at, updated_at, receipt, error, error_kind, error_code, origin,
              archived_at)
   on outbox_archive to %[1]s;
grant select on outbox_attempts, outbox_audit, outbox_operations to %[1]s`, role))
	t.Cleanup(func() { exec(t, db, fmt.Sprintf(`drop owned by %[1]s; drop role %[1]s`, role)) })
	reader := db.Config().Copy()
	reader.ConnConfig.RuntimeParams["role"] = role
	pool, err := pgxpool.NewWithConfig(context.Background(), reader)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	store := outbox.NewStore(pool, "public")
	d, err := store.Show(context.Background(), outbox.Ref{ID: 1})
	if err != nil || d.Content.Readable || d.Content.Payload != nil || d.Row.ID != 1 {
		t.Errorf("Show() = %+v, %v", d, err)
	}
	if page, err := store.List(context.Background(), outbox.Filter{}, nil, 1); err != nil || len(page.Rows) != 1 {
		t.Errorf("List() = %+v, %v", page, err)
	}
}
