package twin_test

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/twin"
)

// TestTableIsAsItsTwin does random things to PostgreSQL and to the model, and compares them whole after each:
// rows, history, counts, audit, archive and pauses.
func TestTableIsAsItsTwin(t *testing.T) {
	checks := "25"
	if os.Getenv("OUTBOXCTL_TEST_LONG") != "" {
		checks = "2000"
	}
	unlessSet(t, "rapid.checks", checks)
	unlessSet(t, "rapid.steps", "50")
	unlessSet(t, "rapid.nofailfile", "true") // the seed is printed
	db := outboxtest.DB(t)
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t, db)
		t.Repeat(map[string]func(*rapid.T){
			"append": m.Append, "append more": m.Append, "insert": m.Insert, "work": m.Work, "work more": m.Work, "work on": m.Work,
			"drain": m.Drain, "time": m.Pass, "replay": m.Replay, "move": m.Move, "discard": m.Discard, "edit": m.Edit,
			"route": m.Route, "review": m.Review, "purge": m.Purge, "pause": m.Pause, "resume": m.Resume,
			"": m.compare,
		})
	})
}

// unlessSet sets a flag that the command line has not.
func unlessSet(t *testing.T, name, value string) {
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == name })
	if set {
		return
	}
	if err := flag.Set(name, value); err != nil {
		t.Fatal(err)
	}
}

// The tables as the twin has them. What may be null is empty here, and what is empty stands out.
const (
	rowColumns = `id, coalesce(source_id, 0), tenant_id, aggregate_type, aggregate_id, event_type, schema_version, idempotency_key,
       destination, headers::text, payload::text, status, attempts, available_at, next_attempt_at, last_attempt_at,
       finished_at, created_at, updated_at, case receipt when '' then '(empty)' else coalesce(receipt, '') end,
       case error when '' then '(empty)' else coalesce(error, '') end, case error_kind when '' then '(empty)' else coalesce(error_kind, '') end,
       coalesce(error_code, 0), origin`

	rowsSQL    = `select ` + rowColumns + `, coalesce(lease, ''), lease_until from outbox order by id`
	archiveSQL = `select ` + rowColumns + `, '', null::timestamptz from outbox_archive order by id`

	attemptsSQL = `
select event_id, attempt, lease, destination, outcome, coalesce(error_kind, ''), coalesce(error_code, 0), coalesce(error, ''),
       (extract(epoch from latency) * 1000000000)::bigint
  from outbox_attempts
 order by event_id, id`

	countsSQL = `
select destination, event_type, outcome, error_kind, error_code, attempt, shadow, sum(n)::int
  from outbox_rollup
 group by 1, 2, 3, 4, 5, 6, 7`

	notesSQL = `select operation, event_id, action, status, attempts, destination from outbox_audit order by operation, event_id`
)

// compare is made after every action.
func (m *machine) compare(t *rapid.T) {
	got := twin.New()
	var now time.Time
	var b pgx.Batch
	b.Queue(rowsSQL).Query(collect(&got.Rows, scanRow))
	b.Queue(archiveSQL).Query(collect(&got.Archive, scanRow))
	b.Queue(attemptsSQL).Query(collect(&got.Attempts, scanAttempt))
	b.Queue(notesSQL).Query(collect(&got.Notes, pgx.RowToStructByPos[twin.Note]))
	b.Queue(countsSQL).Query(func(rows pgx.Rows) error {
		var c twin.Count
		var n int
		_, err := pgx.ForEachRow(rows, []any{&c.Destination, &c.EventType, &c.Outcome, &c.ErrorKind, &c.ErrorCode, &c.Attempt, &c.Shadow, &n}, func() error {
			got.Counts[c] = n
			return nil
		})
		return err
	})
	b.Queue(`select clock_timestamp()`).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
	if err := m.db.SendBatch(context.Background(), &b).Close(); err != nil {
		t.Fatal(err)
	}
	paused := m.paused(t)
	m.meet(got, paused, now.UTC())
	want := m.twin
	sortAttempts(want.Attempts)
	slices.SortFunc(want.Notes, func(a, b twin.Note) int {
		return cmp.Or(cmp.Compare(a.Operation, b.Operation), cmp.Compare(a.EventID, b.EventID))
	})
	slices.SortFunc(want.Archive, func(a, b *twin.Row) int { return cmp.Compare(a.ID, b.ID) })
	for _, c := range []struct {
		name      string
		want, got any
	}{
		{"outbox", orNone(want.Rows), orNone(got.Rows)},
		{"outbox_archive", orNone(want.Archive), orNone(got.Archive)},
		{"outbox_attempts", orNone(want.Attempts), orNone(got.Attempts)},
		{"outbox_rollup", want.Counts, got.Counts},
		{"outbox_audit", orNone(want.Notes), orNone(got.Notes)},
		{"pauses", orNone(m.twin.Pauses(m.now)), orNone(paused)},
	} {
		if diff := gocmp.Diff(c.want, c.got); diff != "" {
			t.Fatalf("%s differs (-twin +PostgreSQL):\n%s", c.name, diff)
		}
	}
	m.now = now.UTC()
}

func orNone[T any](list []T) []T { return append([]T{}, list...) }

func sortAttempts(all []twin.Attempt) {
	slices.SortStableFunc(all, func(a, b twin.Attempt) int { return cmp.Compare(a.EventID, b.EventID) })
}

// meet gives the twin what only PostgreSQL knows: the ids of new rows, and where in this action its times
// were taken.
func (m *machine) meet(got *twin.Table, paused []twin.Paused, now time.Time) {
	type name struct {
		key         uuid.UUID
		destination string
	}
	news := map[name]*twin.Row{}
	for i, r := range m.twin.Rows {
		if !m.known[r.ID] {
			news[name{r.Key, r.Destination}] = r
			r.ID = int64(-1 - i)
		}
	}
	of := map[int64]*twin.Row{}
	for _, r := range got.Rows {
		if own := news[name{r.Key, r.Destination}]; own != nil && !m.known[r.ID] {
			m.twin.Number(own, r.ID)
		}
		m.known[r.ID] = true
		of[r.ID] = r
	}
	for _, own := range m.twin.Rows {
		r := of[own.ID]
		if r == nil {
			continue
		}
		for _, pair := range [][2]*time.Time{
			{&own.AvailableAt, &r.AvailableAt}, {&own.NextAttemptAt, &r.NextAttemptAt}, {&own.LeaseUntil, &r.LeaseUntil},
			{&own.LastAttemptAt, &r.LastAttemptAt}, {&own.FinishedAt, &r.FinishedAt}, {&own.CreatedAt, &r.CreatedAt}, {&own.UpdatedAt, &r.UpdatedAt},
		} {
			m.settleTime(pair[0], *pair[1], now)
		}
	}
	m.twin.EachPause(func(p *twin.Paused) {
		for _, other := range paused {
			if other.Compare(*p) == 0 {
				m.settleTime(&p.Until, other.Until, now)
			}
		}
	})
}

// settleTime takes PostgreSQL's time where the twin's was taken at the start of the action.
func (m *machine) settleTime(own *time.Time, got, now time.Time) {
	if !own.IsZero() && !own.Before(m.now) && !got.Before(*own) && got.Sub(*own) <= now.Sub(m.now) {
		*own = got
	}
}

func collect[T any](into *[]T, scan func(pgx.CollectableRow) (T, error)) func(pgx.Rows) error {
	return func(rows pgx.Rows) (err error) {
		*into, err = pgx.CollectRows(rows, scan)
		return err
	}
}

func scanRow(row pgx.CollectableRow) (*twin.Row, error) {
	var r twin.Row
	var headers string
	times := make([]*time.Time, 5)
	err := row.Scan(&r.ID, &r.SourceID, &r.TenantID, &r.AggregateType, &r.AggregateID, &r.EventType, &r.SchemaVersion, (*[16]byte)(&r.Key),
		&r.Destination, &headers, &r.Payload, &r.Status, &r.Attempts, &r.AvailableAt, &times[0], &times[1],
		&times[2], &r.CreatedAt, &r.UpdatedAt, &r.Receipt, &r.Error, &r.ErrorKind, &r.ErrorCode, &r.Origin, &r.Lease, &times[3])
	if err != nil {
		return nil, err
	}
	for i, at := range []*time.Time{&r.NextAttemptAt, &r.LastAttemptAt, &r.FinishedAt, &r.LeaseUntil} {
		if times[i] != nil {
			*at = times[i].UTC()
		}
	}
	r.AvailableAt, r.CreatedAt, r.UpdatedAt = r.AvailableAt.UTC(), r.CreatedAt.UTC(), r.UpdatedAt.UTC()
	return &r, json.Unmarshal([]byte(headers), &r.Headers)
}

func scanAttempt(row pgx.CollectableRow) (a twin.Attempt, err error) {
	var latency int64
	err = row.Scan(&a.EventID, &a.Attempt, &a.Lease, &a.Destination, &a.Outcome, &a.ErrorKind, &a.ErrorCode, &a.Error, &latency)
	a.Latency = time.Duration(latency)
	return a, err
}
