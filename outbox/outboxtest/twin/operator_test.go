package twin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/twin"
)

// What operators do.

func (m *machine) begin(t *rapid.T, command string) *outbox.Run {
	run, err := m.store.Begin(context.Background(), outbox.Operation{Command: command, Planned: -1})
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// filter selects by what is drawn.
func (m *machine) filter(t *rapid.T, statuses ...outbox.Status) (f outbox.Filter) {
	for _, status := range statuses {
		if rapid.IntRange(0, 2).Draw(t, string(status)) > 0 {
			f.Statuses = append(f.Statuses, status)
		}
	}
	if len(f.Statuses) == 0 {
		f.Statuses = statuses
	}
	switch rapid.IntRange(0, 6).Draw(t, "filter") {
	case 0:
		f.EventTypes = []string{"order.*"}
	case 1:
		f.Tenants = []string{"acme", ""}
	case 2:
		f.Aggregates = []outbox.Aggregate{{Type: "order", ID: "1"}}
	case 3:
		f.ErrorKinds = []string{"http", "network"}
	case 4:
		f.Destinations = []string{rapid.SampledFrom(destinations).Draw(t, "destination")}
	case 5:
		f.IDs = []int64{m.row(t).ID}
	}
	return f
}

// operate makes a change in small or large steps.
func (m *machine) operate(t *rapid.T, run *outbox.Run, step outbox.Step, want twin.Tally) {
	batch := rapid.SampledFrom([]int{1, 2, 1000}).Draw(t, "batch")
	if err := outbox.Drain(context.Background(), step, outbox.Pace{Batch: batch}, nil); err != nil {
		t.Fatal(err)
	}
	got := twin.Tally{Done: run.Progress.Done, Skipped: run.Progress.Skipped}
	if len(got.Skipped) == 0 {
		got.Skipped = nil
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("what was done (-twin +PostgreSQL):\n%s", diff)
	}
}

// Replay sends events again.
func (m *machine) Replay(t *rapid.T) {
	r := outbox.Replay{Filter: m.filter(t, outbox.Failed, outbox.DeadLetter, outbox.Discarded, outbox.Delivered), Before: m.now}
	run := m.begin(t, "replay")
	want := m.twin.Replay(r, run.ID, m.now, isOrdered)
	m.operate(t, run, m.store.Replay(r).Step(run), want)
}

// Move sends the events of one destination to another.
func (m *machine) Move(t *rapid.T) {
	from := rapid.IntRange(0, len(destinations)-1).Draw(t, "from")
	to := destinations[(from+rapid.IntRange(1, len(destinations)-1).Draw(t, "to"))%len(destinations)]
	r := outbox.Replay{Filter: m.filter(t, outbox.Pending, outbox.Failed, outbox.DeadLetter), Before: m.now, MoveTo: &to}
	r.Filter.Destinations = []string{destinations[from]}
	run := m.begin(t, "replay")
	want := m.twin.Replay(r, run.ID, m.now, isOrdered)
	m.operate(t, run, m.store.Replay(r).Step(run), want)
}

// Discard gives events up.
func (m *machine) Discard(t *rapid.T) {
	d := outbox.Discard{Filter: m.filter(t, outbox.Pending, outbox.Failed, outbox.DeadLetter), Before: m.now, Reason: "nobody needs it"}
	run := m.begin(t, "discard")
	want := m.twin.Discard(d, run.ID, m.now)
	m.operate(t, run, m.store.Discard(d).Step(run), want)
}

// Edit changes a payload, and the key or not.
func (m *machine) Edit(t *rapid.T) {
	r := m.row(t)
	e, err := m.store.Editable(context.Background(), outbox.Ref{ID: r.ID})
	if err != nil {
		t.Fatal(err)
	}
	var newKey *uuid.UUID
	if rapid.Bool().Draw(t, "new key") {
		k := m.key()
		newKey = &k
	}
	payload := fmt.Sprintf(`{"n": %d}`, rapid.IntRange(3, 9).Draw(t, "payload"))
	run := m.begin(t, "edit")
	err = run.Edit(context.Background(), e, []byte(payload), newKey)
	if may := m.twin.Edit(r.ID, payload, newKey, run.ID, m.now); may && err != nil || !may && !errors.Is(err, outbox.ErrInFlight) {
		t.Fatalf("Edit() = %v, allowed %v", err, may)
	}
}

// Route gives events their destinations.
func (m *machine) Route(t *rapid.T) {
	some := routes
	if rapid.Bool().Draw(t, "fewer routes") {
		some = routes[:1]
	}
	got, err := m.store.Router(some).Step(context.Background(), 1000)
	if want := m.twin.Route(some, m.now); err != nil || got != want {
		t.Fatalf("Step() = %d, %v, the twin's %d", got, err, want)
	}
}

// Review has unrouted events looked at again.
func (m *machine) Review(t *rapid.T) {
	got, err := m.store.Router(routes).Review(context.Background(), 1000)
	if want := m.twin.Review(m.now); err != nil || got != want {
		t.Fatalf("Review() = %d, %v, the twin's %d", got, err, want)
	}
}

// Purge removes what has ended, or moves it to the archive.
func (m *machine) Purge(t *rapid.T) {
	p := outbox.Purge{Filter: m.filter(t, outbox.Delivered, outbox.Failed, outbox.DeadLetter, outbox.Discarded), Archive: rapid.Bool().Draw(t, "archive")}
	p.Filter.FinishedBefore = m.now.Add(-rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "older than"))
	run := m.begin(t, "purge")
	want := twin.Tally{Done: m.twin.Purge(p)}
	m.operate(t, run, m.store.Purge(run, p), want)
}

// Pause keeps a destination or a tenant from being claimed.
func (m *machine) Pause(t *rapid.T) {
	p := outbox.Pause{
		Destination: rapid.SampledFrom(destinations).Draw(t, "destination"), Tenant: rapid.SampledFrom([]string{"", "acme"}).Draw(t, "tenant"),
		For: rapid.SampledFrom([]time.Duration{20 * time.Second, time.Hour, outbox.Forever}).Draw(t, "for"), Reason: "tea",
	}
	if err := m.begin(t, "pause").Pause(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	m.twin.Pause(p, m.now)
}

// Resume ends that.
func (m *machine) Resume(t *rapid.T) {
	destination, tenant := rapid.SampledFrom(destinations).Draw(t, "destination"), rapid.SampledFrom([]string{"", "acme"}).Draw(t, "tenant")
	was, err := m.begin(t, "resume").Resume(context.Background(), destination, tenant)
	if want := m.twin.Resume(destination, tenant, m.now); err != nil || was != want {
		t.Fatalf("Resume() = %v, %v, the twin's %v", was, err, want)
	}
}

// paused lists what is paused, to the second: times pass while it is read.
func (m *machine) paused(t *rapid.T) (list []twin.Paused) {
	pauses, err := m.store.Pauses(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pauses {
		list = append(list, twin.Paused{Destination: p.Destination, Tenant: p.Tenant, Until: p.Until})
	}
	slices.SortFunc(list, twin.Paused.Compare)
	return list
}
