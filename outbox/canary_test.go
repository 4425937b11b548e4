package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// endWave ends the open events as a dispatcher would: those whose id is in bad fail, the others arrive.
func endWave(t testing.TB, db *pgxpool.Pool, bad ...int64) {
	t.Helper()
	exec(t, db, `update outbox set finished_at = clock_timestamp(), attempts = 1,
	       status = case when id = any ($1) then 'failed' else 'delivered' end,
	       error_kind = case when id = any ($1) then 'http' end
	 where finished_at is null`, bad)
}

// wavesOf replays behind a canary of waves of 1, 10 and 20 events, of which those in bad do not arrive.
func wavesOf(t *testing.T, db *pgxpool.Pool, min float64, bad ...int64) (run *outbox.Run, told []string, err error) {
	t.Helper()
	store := outbox.NewStore(db, "public")
	run, err = store.Begin(context.Background(), outbox.Operation{Command: "replay"})
	if err != nil {
		t.Fatal(err)
	}
	canary := outbox.Canary{Waves: []int{1, 10, 20}, MinSuccess: min, Timeout: time.Minute, Tell: func(w outbox.Wave) {
		told = append(told, fmt.Sprint(w.N, w.Over, w.Events, w.Delivered, w.Ended, w.Open))
		endWave(t, db, bad...)
	}}
	err = store.Replay(failed(t, db)).InWaves(context.Background(), run, canary, outbox.Pace{Batch: 7}, nil)
	return run, told, err
}

func TestCanaryGoesOnWhenItsWavesArrive(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	bury(t, db, 50)
	run, told, err := wavesOf(t, db, 0.9, 5)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"1 false 1 0 0 1", "1 true 1 1 0 0", "2 false 10 0 0 10", "2 true 10 9 1 0", "3 false 20 0 0 20", "3 true 20 20 0 0"}
	if !slices.Equal(told, want) || run.Progress.Done != 50 {
		t.Errorf("told %q, replayed %d; want %q and 50", told, run.Progress.Done, want)
	}
}

func TestCanaryStopsAtTheFirstWaveThatDoesNotArrive(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	bury(t, db, 50)
	before := query[string](t, db, `select string_agg(o::text, ' ' order by id) from outbox o where id > 11`)
	run, told, err := wavesOf(t, db, 0.95, 5)
	stopped, ok := errors.AsType[*outbox.CanaryError](err)
	if !ok || !errors.Is(err, outbox.ErrGaveUp) || stopped.N != 2 || stopped.Delivered != 9 {
		t.Fatalf("InWaves() = %v after %q, want an end at the second wave", err, told)
	}
	if got, want := err.Error(), "wave 2 of 3: 9 of 10 delivered, at least 95 % must be: 1 failed"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
	if run.Progress.Done != 11 {
		t.Errorf("replayed %d events, want 11", run.Progress.Done)
	}
	if after := query[string](t, db, `select string_agg(o::text, ' ' order by id) from outbox o where id > 11`); before != after {
		t.Error("the rest was changed")
	}
	if got := query[string](t, db, `select cursor ->> 'wave' from outbox_operations where id = $1`, run.ID); got != "2" {
		t.Errorf("the operation is at wave %s, want 2", got)
	}
}

// A wave that is retried again and again has not arrived when its time is over.
func TestCanaryTakesNoRetryForASuccess(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	bury(t, db, 5)
	store := outbox.NewStore(db, "public")
	run, err := store.Begin(context.Background(), outbox.Operation{Command: "replay"})
	if err != nil {
		t.Fatal(err)
	}
	exec(t, db, `insert into outbox_workers (worker, name, host, pid, version, destinations, parallel, batch_size) values ('w', 'w', 'h', 1, '1', '{""}', 1, 1)`)
	var first outbox.Wave
	canary := outbox.Canary{Waves: []int{2}, MinSuccess: 0.5, Timeout: 300 * time.Millisecond, Tell: func(w outbox.Wave) {
		if !w.Over {
			first = w
			exec(t, db, `update outbox set attempts = 3, error_kind = 'http' where finished_at is null`)
			exec(t, db, `insert into outbox_tenant_pauses (destination, tenant_id, paused_until) values ('', '', 'infinity'), ('x', '', 'infinity')`)
		}
	}}
	err = store.Replay(failed(t, db)).InWaves(context.Background(), run, canary, outbox.Pace{}, nil)
	if got, want := fmt.Sprint(err), "wave 1 of 1: 0 of 2 delivered, at least 50 % must be: 2 without an outcome after 300ms; paused: "; got != want {
		t.Errorf("InWaves() = %q, want %q", got, want)
	}
	if len(first.Unserved) > 0 {
		t.Errorf("unserved %q, but a dispatcher is alive", first.Unserved)
	}
}

// Nobody waits for the rest of a wave that cannot arrive any more.
func TestCanaryStopsAsSoonAsItsWaveIsLost(t *testing.T) {
	t.Parallel()
	db := outboxtest.DB(t)
	bury(t, db, 20)
	store := outbox.NewStore(db, "public")
	run, err := store.Begin(context.Background(), outbox.Operation{Command: "replay"})
	if err != nil {
		t.Fatal(err)
	}
	canary := outbox.Canary{Waves: []int{10}, MinSuccess: 0.9, Timeout: time.Hour, Tell: func(w outbox.Wave) {
		exec(t, db, `update outbox set finished_at = clock_timestamp(), status = 'failed', error_kind = 'http' where finished_at is null and id in (2, 3)`)
	}}
	err = store.Replay(failed(t, db)).InWaves(context.Background(), run, canary, outbox.Pace{}, nil)
	if stopped, ok := errors.AsType[*outbox.CanaryError](err); !ok || stopped.Open != 8 || stopped.Ended != 2 {
		t.Errorf("InWaves() = %v, want an end with eight events open", err)
	}
}
