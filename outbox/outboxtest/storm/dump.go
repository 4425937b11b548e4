package storm

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// dump reads all that the database has kept, and looks for canaries.
func (r *run) dump(ctx context.Context) error {
	r.phase("dump")
	h := &r.book.h
	for _, read := range []func() error{
		func() (err error) { h.Rows, err = list(ctx, r, rowsSQL, scanRow); return err },
		func() (err error) { h.Transitions, err = list(ctx, r, transitionsSQL, scanTransition); return err },
		func() (err error) { h.Attempts, err = list(ctx, r, attemptsSQL, scanAttempt); return err },
		func() (err error) { h.Audits, err = list(ctx, r, auditsSQL, scanAudit); return err },
		func() (err error) { h.Operations, err = list(ctx, r, operationsSQL, r.scanOperation); return err },
		func() error { return r.search(ctx) },
	} {
		if err := read(); err != nil {
			return fmt.Errorf("dump: %w", err)
		}
	}
	r.name(h.Audits)
	h.Secrets = r.vault.lives()
	slices.SortFunc(h.Requests, func(a, b history.Request) int { return int(a.N - b.N) })
	return nil
}

func list[T any](ctx context.Context, r *run, sql string, scan pgx.RowToFunc[T]) ([]T, error) {
	rows, err := r.admin.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

const rowsSQL = `
select id, coalesce(source_id, 0), idempotency_key::text, tenant_id, aggregate_type, aggregate_id, event_type,
       encode(sha256(convert_to(coalesce(payload::text, ''), 'UTF8')), 'hex'), coalesce(error, ''), origin, created_at,
       destination, status, attempts, coalesce(lease, ''), lease_until, available_at, next_attempt_at, finished_at,
       coalesce(error_kind, ''), coalesce(error_code, 0), coalesce(receipt, ''), false
  from outbox
union all
select id, coalesce(source_id, 0), idempotency_key::text, tenant_id, aggregate_type, aggregate_id, event_type,
       encode(sha256(convert_to(coalesce(payload::text, ''), 'UTF8')), 'hex'), coalesce(error, ''), origin, created_at,
       destination, status, attempts, '', null, available_at, next_attempt_at, finished_at,
       coalesce(error_kind, ''), coalesce(error_code, 0), coalesce(receipt, ''), true
  from outbox_archive
 order by 1`

func scanRow(row pgx.CollectableRow) (v history.Row, err error) {
	return v, row.Scan(&v.ID, &v.Source, &v.Key, &v.Tenant, &v.Type, &v.Agg, &v.Event, &v.Payload, &v.Error, &v.Origin, &v.Created,
		&v.Dest, &v.Status, &v.Attempts, &v.Lease, &v.LeaseUntil, &v.Available, &v.Next, &v.Finished, &v.Kind, &v.Code, &v.Receipt, &v.Archived)
}

const transitionsSQL = `
select n, at, xid, app, pid, id, (before).status is not null, (after).status is not null,
       coalesce((before).destination, ''), coalesce((before).status, ''), coalesce((before).attempts, 0), coalesce((before).lease, ''), (before).lease_until,
       (before).available_at, (before).next_attempt_at, (before).finished_at, coalesce((before).error_kind, ''), coalesce((before).error_code, 0), coalesce((before).receipt, ''),
       coalesce((after).destination, ''), coalesce((after).status, ''), coalesce((after).attempts, 0), coalesce((after).lease, ''), (after).lease_until,
       (after).available_at, (after).next_attempt_at, (after).finished_at, coalesce((after).error_kind, ''), coalesce((after).error_code, 0), coalesce((after).receipt, '')
  from storm.log
 order by n`

func scanTransition(row pgx.CollectableRow) (history.Transition, error) {
	var t history.Transition
	var hadOld, hasNew bool
	before, after := new(scanned), new(scanned)
	targets := []any{&t.N, &t.At, &t.Xid, &t.App, &t.Pid, &t.ID, &hadOld, &hasNew}
	err := row.Scan(append(append(targets, before.targets()...), after.targets()...)...)
	if hadOld {
		t.Old = before.state()
	}
	if hasNew {
		t.New = after.state()
	}
	return t, err
}

// scanned is a state as it comes, all of it null where there was none.
type scanned struct {
	s         history.State
	available *time.Time
}

func (v *scanned) targets() []any {
	s := &v.s
	return []any{&s.Dest, &s.Status, &s.Attempts, &s.Lease, &s.LeaseUntil, &v.available, &s.Next, &s.Finished, &s.Kind, &s.Code, &s.Receipt}
}

func (v *scanned) state() *history.State {
	if v.available != nil {
		v.s.Available = *v.available
	}
	return &v.s
}

const attemptsSQL = `
select id, event_id, attempt, lease, at, outcome, coalesce(error_kind, ''), coalesce(error_code, 0)
  from outbox_attempts
 order by id`

func scanAttempt(row pgx.CollectableRow) (v history.Attempt, err error) {
	return v, row.Scan(&v.ID, &v.Event, &v.N, &v.Lease, &v.At, &v.Outcome, &v.Kind, &v.Code)
}

const auditsSQL = `
select a.operation, o.command, o.who, o.reason, o.pid::text, a.event_id, a.at, a.action, a.status, a.attempts
  from outbox_audit a
  left join outbox_operations o on o.id = a.operation
 order by a.id`

// scanAudit leaves the pid where the process's name will be.
func scanAudit(row pgx.CollectableRow) (v history.Audit, err error) {
	return v, row.Scan(&v.Operation, &v.Command, &v.Who, &v.Reason, &v.App, &v.Event, &v.At, &v.Action, &v.Status, &v.Attempts)
}

// name puts the names of the run's processes in place of their pids.
func (r *run) name(audits []history.Audit) {
	names := map[string]string{}
	for _, p := range r.book.h.Processes {
		names[strconv.Itoa(p.Pid)] = p.Name
	}
	for i := range audits {
		audits[i].App = names[audits[i].App]
	}
}

const operationsSQL = `
select id, command, who, reason, pid, started_at, done, ended_at is not null
  from outbox_operations
 order by id`

// scanOperation finds the process of an operation by its pid, which others may have had before and after.
func (r *run) scanOperation(row pgx.CollectableRow) (v history.Operation, err error) {
	var pid int
	var began time.Time
	err = row.Scan(&v.ID, &v.Command, &v.Who, &v.Reason, &pid, &began, &v.Done, &v.Ended)
	for _, p := range r.book.h.Processes {
		if p.Pid == pid && !began.Before(p.Began) && (p.End.IsZero() || !began.After(p.End)) {
			v.App = p.Name
		}
	}
	return v, err
}

const errorsSQL = `
select coalesce(error, '') from outbox where error is not null
union all
select coalesce(error, '') from outbox_archive where error is not null
union all
select coalesce(error, '') from outbox_attempts where error is not null
union all
select coalesce(error, '') || reason || filter::text from outbox_operations`

// search looks for canaries wherever people look.
func (r *run) search(ctx context.Context) error {
	canaries := r.vault.canaries()
	for _, role := range []string{superuser, dispatcherRole, producerRole, operatorRole} {
		canaries["password of "+role] = password(role)
	}
	canaries["payload"] = canaryText
	logs, err := filepath.Glob(filepath.Join(r.dir, "*.log"))
	if err != nil {
		return err
	}
	for _, file := range logs {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		r.look("log "+filepath.Base(file), string(text), canaries)
	}
	errors, err := list(ctx, r, errorsSQL, pgx.RowTo[string])
	if err != nil {
		return err
	}
	r.look("error columns", strings.Join(errors, "\n"), canaries)
	r.look("process list", strings.Join(slices.Sorted(maps.Keys(r.watch.lines)), "\n"), canaries)
	var printed strings.Builder
	for _, c := range r.book.h.Commands {
		printed.Write(c.Document)
		printed.WriteString(c.Words)
	}
	r.look("output of commands", printed.String(), canaries)
	return nil
}

func (r *run) look(place, text string, canaries map[string]string) {
	s := history.Search{Place: place, Bytes: int64(len(text))}
	for _, name := range slices.Sorted(maps.Keys(canaries)) {
		if strings.Contains(text, canaries[name]) {
			s.Found = append(s.Found, name)
		}
	}
	r.book.h.Searches = append(r.book.h.Searches, s)
}
