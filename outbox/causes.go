package outbox

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// How many rows are read for causes: of those that are given up and of those that are open.
const (
	causesBuried = 20_000
	causesOpen   = 100_000
)

// Causes are the errors of events that were given up or wait for another attempt, by what they have in
// common.
type Causes struct {
	Failures int64   // events with an error
	Capped   bool    // there are more, which were not read: the newest of the buried ones count
	All      []Cause // the most frequent first
}

// Cause is one reason why events are not delivered.
type Cause struct {
	Kind         string
	Code         int    // 0 = none
	Text         string // of the errors, without what is about one event alone
	N            int64
	Status       map[Status]int64
	Destinations []string // in order of their names; "" is the default one
	EventTypes   []string
	First, Last  time.Time // attempts, or ends of events that were never sent; UTC
	EventID      int64     // one of the last

	words []string // of Text
}

// Share is the part of all failures that has this cause, 0..1.
func (c *Causes) Share(of Cause) float64 { return share(of.N, c.Failures) }

// Explain returns how many causes explain at least that share of the failures, and what they do explain.
func (c *Causes) Explain(least float64) (n int, part float64) {
	var sum int64
	for i, cause := range c.All {
		if sum += cause.N; share(sum, c.Failures) >= least {
			return i + 1, share(sum, c.Failures)
		}
	}
	return len(c.All), share(sum, c.Failures)
}

// causeSQL sums up in PostgreSQL what is the same to the letter.
const causeSQL = `
with part as (
	(select id, status, destination, event_type, error_kind, error_code, left(error, 500) as error,
	        coalesce(last_attempt_at, finished_at) as at
	   from {schema}.outbox -- outbox_graveyard
	  where finished_at is not null
	    and error_kind is not null
	    and status <> 'discarded'
	    and finished_at > now() - @window::bigint * interval '1 microsecond'
	  order by finished_at desc, id desc
	  limit @buried)
	union all
	(select id, status, destination, event_type, error_kind, error_code, left(error, 500), last_attempt_at
	   from (select id, status, destination, event_type, error_kind, error_code, error, last_attempt_at
	           from {schema}.outbox -- outbox_lag
	          where finished_at is null
	          limit @open) o
	  where error_kind is not null
	    and last_attempt_at > now() - @window::bigint * interval '1 microsecond'))
select error_kind, coalesce(error_code, 0), coalesce(error, ''), status, destination, event_type,
       count(*), min(at), max(at), max(id)
  from part
 group by error_kind, error_code, error, status, destination, event_type`

const causeSizeSQL = `
select (select count(*) from (select from {schema}.outbox -- outbox_graveyard
                               where finished_at is not null and error_kind is not null and status <> 'discarded'
                                 and finished_at > now() - @window::bigint * interval '1 microsecond'
                               limit @buried + 1) b) > @buried
    or (select count(*) from (select from {schema}.outbox -- outbox_lag
                               where finished_at is null limit @open + 1) o) > @open`

// Causes groups the errors of the window. It reads at most a hundred and twenty thousand rows, by index.
func (s *Store) Causes(ctx context.Context, window time.Duration) (*Causes, error) {
	c := &Causes{}
	args := pgx.NamedArgs{"window": window.Microseconds(), "buried": causesBuried, "open": causesOpen}
	err := s.look(ctx, "errors", func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, s.sql(causeSizeSQL), args).Scan(&c.Capped); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, s.sql(causeSQL), args)
		if err != nil {
			return err
		}
		return c.read(rows)
	})
	if err != nil {
		return nil, err
	}
	c.merge()
	return c, nil
}

// causeKey is what is the same for all failures with one cause.
type causeKey struct {
	kind string
	code int
	text string
}

// read groups rows by fingerprint.
func (c *Causes) read(rows pgx.Rows) error {
	found := map[causeKey]*Cause{}
	var key causeKey
	var status Status
	var destination, eventType string
	var n, id int64
	var first, last *time.Time
	_, err := pgx.ForEachRow(rows, []any{&key.kind, &key.code, &key.text, &status, &destination, &eventType, &n, &first, &last, &id}, func() error {
		same := causeKey{key.kind, key.code, fingerprint(key.text)}
		one := Cause{
			Kind: same.kind, Code: same.code, Text: same.text, N: n, Status: map[Status]int64{status: n},
			Destinations: []string{destination}, EventTypes: []string{eventType}, EventID: id,
		}
		if first != nil && last != nil {
			one.First, one.Last = first.UTC(), last.UTC()
		}
		if all, ok := found[same]; ok {
			all.add(one)
		} else {
			found[same] = &one
		}
		c.Failures += n
		return nil
	})
	for _, cause := range found {
		cause.words = strings.Fields(cause.Text)
		c.All = append(c.All, *cause)
	}
	c.sort()
	return err
}

// add takes another's failures in.
func (c *Cause) add(o Cause) {
	c.N += o.N
	for status, n := range o.Status {
		c.Status[status] += n
	}
	c.Destinations, c.EventTypes = union(c.Destinations, o.Destinations), union(c.EventTypes, o.EventTypes)
	if c.First.IsZero() || !o.First.IsZero() && o.First.Before(c.First) {
		c.First = o.First
	}
	if o.Last.After(c.Last) || o.Last.Equal(c.Last) && o.EventID > c.EventID {
		c.Last, c.EventID = o.Last, o.EventID
	}
}

func union(a, b []string) []string {
	set := map[string]bool{}
	for _, name := range append(slices.Clone(a), b...) {
		set[name] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// merge joins what differs by a word or two: a person's name is no cause. The most frequent are joined
// first.
func (c *Causes) merge() {
	var merged []Cause
	for _, cause := range c.All {
		if !joined(merged, cause) {
			merged = append(merged, cause)
		}
	}
	c.All = merged
	c.sort()
}

// joined adds a cause to the first that is like it, of the most frequent ones.
func joined(all []Cause, cause Cause) bool {
	const most = 500
	for i := range all[:min(most, len(all))] {
		if all[i].Kind != cause.Kind || all[i].Code != cause.Code {
			continue
		}
		if words, ok := alike(all[i].words, cause.words); ok {
			all[i].add(cause)
			all[i].words, all[i].Text = words, strings.Join(words, " ")
			return true
		}
	}
	return false
}

func (c *Causes) sort() {
	slices.SortFunc(c.All, func(a, b Cause) int {
		return cmp.Or(cmp.Compare(b.N, a.N), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Code, b.Code), cmp.Compare(a.Text, b.Text))
	})
}
