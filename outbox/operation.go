package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrBusy means that the same command is at work on this outbox already.
var ErrBusy = errors.New("busy")

// ErrGaveUp means that an operation has seen no sense in going on. What it had done stays done, and
// the rest is as it was.
var ErrGaveUp = errors.New("gave up")

// ErrFinished means that an operation has come to its end already.
var ErrFinished = errors.New("finished")

// Operation is an operator's command, as outbox_operations keeps it.
type Operation struct {
	Command string // replay, purge, …
	Name    string // of a run that is to be resumed by it; "" = none
	Who     string // the user of the operating system; the database's role is added to it
	Host    string
	PID     int
	Filter  any // what was selected, as JSON; no payload, no secret
	Reason  string
	Planned int64 // events, as the rehearsal counted them; -1 = not counted
	Alone   bool  // no second one of the same command may run beside it
}

// Progress is how far a run has come.
type Progress struct {
	Done    int64            // events changed
	Skipped map[string]int64 // events left as they are, by reason
	Cursor  json.RawMessage  // where the next step begins; nil = at the start
}

// Matched counts the events that were looked at.
func (p Progress) Matched() int64 {
	n := p.Done
	for _, skipped := range p.Skipped {
		n += skipped
	}
	return n
}

// skip counts n events that are left as they are.
func (p *Progress) skip(reason string, n int64) {
	if n <= 0 {
		return
	}
	if p.Skipped == nil {
		p.Skipped = map[string]int64{}
	}
	p.Skipped[reason] += n
}

// at reads the cursor into v, which stays as it is at the start.
func (p *Progress) at(v any) error {
	if p.Cursor == nil {
		return nil
	}
	if err := json.Unmarshal(p.Cursor, v); err != nil {
		return fmt.Errorf("cursor: %w", err)
	}
	return nil
}

// move sets the cursor to v.
func (p *Progress) move(v any) (err error) {
	p.Cursor, err = json.Marshal(v)
	return err
}

// Run is an operation under way. Its row holds how far it has come and is written by each step in
// the transaction of its work: whatever happens to a step, its row and its work agree. Its methods
// are for one goroutine at a time, but for [Run.Live].
type Run struct {
	ID       int64 // of its row; 0 = a rehearsal, which has none and changes nothing
	Progress Progress

	store *Store
}

var operationLimits = limits{statement: 30 * time.Second, lock: 2 * time.Second}

// aloneSQL makes those who begin the same command take turns: $1 is schema, purpose and command.
const (
	aloneSQL = `select pg_advisory_xact_lock(hashtextextended($1, 0))`

	runningSQL = `
select coalesce(min(id), 0)
  from {schema}.outbox_operations
 where command = @command
   and ended_at is null
   and heartbeat_at > now() - @dead_after::bigint * interval '1 microsecond'`

	beginOperationSQL = `
insert into {schema}.outbox_operations
       (who, host, pid, command, name, filter, reason, planned, started_at, heartbeat_at)
values (@who::text || ' (database role ' || session_user || ')', @host, @pid, @command, @name, @filter::text::jsonb, @reason,
        nullif(@planned::bigint, -1), clock_timestamp(), clock_timestamp())
returning id`
)

// Begin writes the operation's row. It returns [ErrBusy] when the operation is to be alone and
// another one is at work, which is one whose heartbeat is younger than [DeadAfter].
func (s *Store) Begin(ctx context.Context, op Operation) (*Run, error) {
	run := &Run{store: s}
	if op.Filter == nil {
		op.Filter = Filter{}
	}
	filter, err := json.Marshal(op.Filter)
	if err != nil {
		return nil, fmt.Errorf("begin %s: %w", op.Command, err)
	}
	err = s.inTx(ctx, operationLimits, func(tx pgx.Tx) error {
		if op.Alone {
			if err := s.mustBeAlone(ctx, tx, op.Command); err != nil {
				return err
			}
		}
		return tx.QueryRow(ctx, s.sql(beginOperationSQL), pgx.NamedArgs{
			"who": op.Who, "host": op.Host, "pid": op.PID, "command": op.Command, "name": op.Name,
			"filter": string(filter), "reason": op.Reason, "planned": op.Planned,
		}).Scan(&run.ID)
	})
	if err != nil {
		return nil, fmt.Errorf("begin %s: %w", op.Command, err)
	}
	return run, nil
}

func (s *Store) mustBeAlone(ctx context.Context, tx pgx.Tx, command string) error {
	if _, err := tx.Exec(ctx, aloneSQL, s.schema+" outboxctl operation "+command); err != nil {
		return err
	}
	var other int64
	err := tx.QueryRow(ctx, s.sql(runningSQL), pgx.NamedArgs{"command": command, "dead_after": DeadAfter.Microseconds()}).Scan(&other)
	if err == nil && other != 0 {
		err = fmt.Errorf("%w: operation %d is at work", ErrBusy, other)
	}
	return err
}

// Past is an operation that was begun under a name.
type Past struct {
	ID       int64
	Filter   json.RawMessage // as [Operation] had it
	Progress Progress
	Finished bool // to its end
	Alive    bool // and at work, or dead for less than [DeadAfter]
	Host     string
	PID      int
}

const (
	pastSQL = `
select id, filter, done, skipped, cursor, ended_at is not null and error is null,
       ended_at is null and heartbeat_at > now() - @dead_after::bigint * interval '1 microsecond', host, pid
  from {schema}.outbox_operations
 where command = @command
   and name = @name
 order by id desc
 limit 1`

	goOnSQL = `
update {schema}.outbox_operations
   set ended_at = null, error = null, heartbeat_at = clock_timestamp()
 where id = @id
   and (ended_at is null or error is not null)
returning done, skipped, cursor`
)

// Past returns the last operation of a command that was begun under a name, nil when there is none.
func (s *Store) Past(ctx context.Context, command, name string) (*Past, error) {
	var p Past
	err := s.inTx(ctx, operationLimits, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, s.sql(pastSQL), pgx.NamedArgs{"command": command, "name": name, "dead_after": DeadAfter.Microseconds()}).
			Scan(&p.ID, &p.Filter, &p.Progress.Done, &p.Progress.Skipped, &p.Progress.Cursor, &p.Finished, &p.Alive, &p.Host, &p.PID)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look for %s %q: %w", command, name, err)
	}
	return &p, nil
}

// Resume goes on with an operation that ended early or died. Whether somebody is still at it the
// caller has to know; two at one operation take its steps in turns. It returns [ErrFinished] when
// there is nothing to go on with.
func (s *Store) Resume(ctx context.Context, id int64) (*Run, error) {
	run := &Run{ID: id, store: s}
	p := &run.Progress
	err := s.inTx(ctx, operationLimits, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, s.sql(goOnSQL), pgx.NamedArgs{"id": id}).Scan(&p.Done, &p.Skipped, &p.Cursor)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrFinished
	}
	if err != nil {
		return nil, fmt.Errorf("resume operation %d: %w", id, err)
	}
	return run, nil
}

const pendingSQL = `
select count(*)
  from (select from {schema}.outbox where finished_at is null limit $1) o -- outbox_lag`

// Open counts the open events, as far as most: what it reads is bounded.
func (s *Store) Open(ctx context.Context, most int) (n int, err error) {
	err = s.inTx(ctx, statsLimits, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, byIndexSQL); err != nil {
			return err
		}
		return tx.QueryRow(ctx, s.sql(pendingSQL), most).Scan(&n)
	})
	if err != nil {
		return 0, fmt.Errorf("count open events: %w", err)
	}
	return n, nil
}

// Rehearse returns a run that changes nothing: its steps count what those of a real one would do.
func (s *Store) Rehearse() *Run { return &Run{store: s} }

// Rehearsal reports whether r changes nothing.
func (r *Run) Rehearsal() bool { return r.ID == 0 }

const (
	resumeSQL = `
select done, skipped, cursor
  from {schema}.outbox_operations
 where id = $1
   for update`

	saveSQL = `
update {schema}.outbox_operations
   set done = @done, skipped = @skipped::text::jsonb, cursor = @cursor::text::jsonb, heartbeat_at = clock_timestamp()
 where id = @id`
)

// step runs f in a transaction and keeps what it did to the progress in the same one. f begins with
// the progress that the database knows, so that a step whose reply was lost counts once.
func (r *Run) step(ctx context.Context, f func(tx pgx.Tx, p *Progress) (n int, err error)) (n int, err error) {
	if r.Rehearsal() {
		return r.rehearse(ctx, f)
	}
	var p Progress
	err = r.store.inTx(ctx, operationLimits, func(tx pgx.Tx) (err error) {
		p = Progress{}
		if err = tx.QueryRow(ctx, r.store.sql(resumeSQL), r.ID).Scan(&p.Done, &p.Skipped, &p.Cursor); err != nil {
			return err
		}
		if n, err = f(tx, &p); err != nil {
			return err
		}
		return r.save(ctx, tx, p)
	})
	if err != nil {
		return 0, err
	}
	r.Progress = p
	return n, nil
}

func (r *Run) rehearse(ctx context.Context, f func(tx pgx.Tx, p *Progress) (n int, err error)) (n int, err error) {
	l := operationLimits
	l.reads = true
	var p Progress
	err = r.store.inTx(ctx, l, func(tx pgx.Tx) (err error) {
		p = r.Progress
		p.Skipped = maps.Clone(p.Skipped)
		n, err = f(tx, &p)
		return err
	})
	if err != nil {
		return 0, err
	}
	r.Progress = p
	return n, nil
}

func (r *Run) save(ctx context.Context, tx pgx.Tx, p Progress) error {
	skipped := p.Skipped
	if skipped == nil {
		skipped = map[string]int64{}
	}
	reasons, err := json.Marshal(skipped)
	if err != nil {
		return err
	}
	var cursor *string
	if p.Cursor != nil {
		text := string(p.Cursor)
		cursor = &text
	}
	_, err = tx.Exec(ctx, r.store.sql(saveSQL), pgx.NamedArgs{
		"id": r.ID, "done": p.Done, "skipped": string(reasons), "cursor": cursor,
	})
	return err
}

const aliveSQL = `
update {schema}.outbox_operations
   set heartbeat_at = clock_timestamp()
 where id = $1
   and ended_at is null`

// Live keeps the run's heartbeat fresh while it waits for its next step, until ctx is done.
func (r *Run) Live(ctx context.Context) {
	if r.Rehearsal() {
		return
	}
	for wait(ctx, heartbeat) == nil {
		_ = r.store.inTx(ctx, workerLimits, func(tx pgx.Tx) error { // the next beat tries again
			_, err := tx.Exec(ctx, r.store.sql(aliveSQL), r.ID)
			return err
		})
	}
}

const endOperationSQL = `
update {schema}.outbox_operations
   set ended_at = clock_timestamp(), heartbeat_at = clock_timestamp(), error = nullif(@error, '')
 where id = @id`

// End closes the run's row, with why it ended early, "" when it did not. It runs although ctx is
// done.
func (r *Run) End(ctx context.Context, why string) error {
	if r.Rehearsal() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), operationLimits.statement)
	defer cancel()
	err := r.store.inTx(ctx, operationLimits, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, r.store.sql(endOperationSQL), pgx.NamedArgs{"id": r.ID, "error": why})
		return err
	})
	if err != nil {
		return fmt.Errorf("end operation %d: %w", r.ID, err)
	}
	return nil
}

// auditSQL notes what an operation did to events, from the rows that it found: a CTE named touched
// with id, status, attempts, destination and payload_hash as they were before. It stands as a CTE
// beside the update, so that there is no change without its note.
const auditSQL = `
insert into {schema}.outbox_audit (operation, event_id, action, status, attempts, destination, payload_hash)
select @operation, id, @action, status, attempts, destination, payload_hash
  from touched`

const nowSQL = `select now()`

// Now is the database's clock, which all times in filters go by.
func (s *Store) Now(ctx context.Context) (now time.Time, err error) {
	err = s.inTx(ctx, statsLimits, func(tx pgx.Tx) error { return tx.QueryRow(ctx, nowSQL).Scan(&now) })
	if err != nil {
		return now, fmt.Errorf("the database's clock: %w", err)
	}
	return now.UTC(), nil
}
