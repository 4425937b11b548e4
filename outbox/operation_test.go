package outbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// A step and how far the run has come are one transaction, and the database knows it better than a
// process whose reply was lost.
func TestRunKeepsItsProgressWithItsWork(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	run, err := outbox.NewStore(db, "public").Begin(ctx, outbox.Operation{Command: "purge", Who: "anna", Filter: outbox.Filter{Statuses: []outbox.Status{"failed"}}, Planned: -1})
	if err != nil {
		t.Fatal(err)
	}
	insert(t, db, 2)
	remove := func(tx pgx.Tx, p *outbox.Progress) (int, error) {
		if _, err := tx.Exec(ctx, `delete from public.outbox where id = (select min(id) from public.outbox)`); err != nil {
			return 0, err
		}
		p.Done++
		p.Skip("locked", 2)
		return 1, p.Move(map[string]int{"id": 1})
	}
	if n, err := run.Step(ctx, remove); n != 1 || err != nil {
		t.Fatalf("step = %d, %v", n, err)
	}
	broken := errors.New("broken")
	_, err = run.Step(ctx, func(tx pgx.Tx, p *outbox.Progress) (int, error) {
		_, err := remove(tx, p)
		return 1, errors.Join(err, broken)
	})
	if !errors.Is(err, broken) {
		t.Errorf("a broken step = %v", err)
	}
	want := outbox.Progress{Done: 1, Skipped: map[string]int64{"locked": 2}, Cursor: []byte(`{"id":1}`)}
	if diff := cmp.Diff(want, run.Progress); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	run.Progress = outbox.Progress{Done: 100} // what a process may believe
	if _, err := run.Step(ctx, remove); err != nil {
		t.Fatal(err)
	}
	if err := run.End(ctx, "stopped"); err != nil {
		t.Fatal(err)
	}
	got := query[string](t, db, `select concat_ws(' ', done, skipped, cursor, filter, planned is null, ended_at is not null, error, who like 'anna (database role %)')
  from outbox_operations`)
	if want := `2 {"locked": 4} {"id": 1} {"statuses": ["failed"]} t t stopped t`; got != want {
		t.Errorf("the row is %s, want %s", got, want)
	}
	if n := query[int](t, db, `select count(*) from outbox`); n != 0 {
		t.Errorf("%d events are left", n)
	}
}

func TestOperationThatIsToBeAloneIs(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	store := outbox.NewStore(db, "public")
	begin := func(command string) (*outbox.Run, error) {
		return store.Begin(ctx, outbox.Operation{Command: command, Alone: true, Planned: 5})
	}
	first, err := begin("purge")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := begin("purge"); !errors.Is(err, outbox.ErrBusy) {
		t.Errorf("a second one beside the first: %v, want ErrBusy", err)
	}
	if _, err := begin("replay"); err != nil {
		t.Errorf("another command: %v", err)
	}
	exec(t, db, `update outbox_operations set heartbeat_at = now() - interval '31 s'`)
	if _, err := begin("purge"); err != nil {
		t.Errorf("after the first one died: %v", err)
	}
	exec(t, db, `update outbox_operations set heartbeat_at = now() - interval '31 s' where id <> $1`, first.ID)
	if err := first.End(ctx, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := begin("purge"); err != nil {
		t.Errorf("after the first one's end: %v", err)
	}
}

func TestRehearsalChangesNothing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := outboxtest.DB(t)
	run := outbox.NewStore(db, "public").Rehearse()
	for range 2 {
		if _, err := run.Step(ctx, func(_ pgx.Tx, p *outbox.Progress) (int, error) {
			p.Done++
			p.Skip("locked", 1)
			return 1, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if run.Progress.Done != 2 || run.Progress.Matched() != 4 {
		t.Errorf("progress %+v", run.Progress)
	}
	if _, err := run.Step(ctx, func(tx pgx.Tx, _ *outbox.Progress) (int, error) {
		_, err := tx.Exec(ctx, `delete from public.outbox`)
		return 1, err
	}); err == nil {
		t.Error("a rehearsal may write")
	}
	if n := query[int](t, db, `select count(*) from outbox_operations`); n != 0 {
		t.Errorf("a rehearsal left %d rows", n)
	}
}
