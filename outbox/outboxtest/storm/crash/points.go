package crash

import (
	"strings"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/edit"
)

// point is one at which a process can die.
type point struct {
	name string
	file string
	text string // of the sources, found once
	with string // what stands there instead; DIE is the death, TEXT the old text
}

func (p point) edit() edit.Edit {
	die := `crashPoint("` + p.name + `")`
	words := strings.NewReplacer("DIE", die, "TEXT", p.text)
	return edit.Edit{Name: "crash point " + p.name, File: p.file, Old: p.text, New: words.Replace(p.with)}
}

// Points are the names of all points: what a dispatcher comes by, then a router, operators' commands, and
// migrations.
func Points() (names []string) {
	for _, p := range points {
		names = append(names, p.name)
	}
	return names
}

const (
	queue     = "outbox/queue.go"
	operation = "outbox/operation.go"
	up        = "migrate/up.go"

	exchanges = `err = conn.SendBatch(ctx, &batch).Close()`
)

// points are edited in in this order: some stand in what an earlier one has written.
var points = []point{
	// An event is claimed in the table, and nobody knows.
	{"after-claim", queue, exchanges, `TEXT
	if err == nil && len(claim.events)+len(claim.ids) > 0 {
		DIE
	}`},
	// The claim's statements are with the server, whose answers nobody reads.
	{"claim-under-way", queue, exchanges, `answers := conn.SendBatch(ctx, &batch)
	if want.N > 0 {
		DIE
	}
	err = answers.Close()`},
	{"before-request", "outbox/sink/webhook/trip.go", `	resp, err := s.transport.RoundTrip(req)`, "\tDIE\nTEXT"},
	// The last byte of a request is out.
	{"after-request", "outbox/sink/webhook/trip.go", `		GotFirstResponseByte: func() {`, `		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				DIE
			}
		},
TEXT`},
	{"after-2xx", "outbox/sink/webhook/sink.go", `	return receipt(resp.StatusCode, resp.Header), nil`, "\tDIE\nTEXT"},
	{"before-settle", queue, `	if len(outs) > 0 || !q.ordered {`, `	if len(outs) > 0 {
		DIE
	}
TEXT`},
	{"settle-under-way", queue, `	err = answers.Close()`, `	if len(outs) > 0 {
		DIE
	}
TEXT`},
	// The results are in the table, and the process does not know.
	{"after-settle", queue, `	err = answers.Close()`, `TEXT
	if err == nil && len(outs) > 0 {
		DIE
	}`},
	{"after-settle-alone", "outbox/settle.go", `		return Exchanged{Lost: sorted.lost, Held: sorted.locked}, nil`, "\t\tDIE\nTEXT"},
	{"heartbeat", "outbox/worker.go", `		_, err = tx.Exec(ctx, w.store.sql(sweepSQL))`, "TEXT\n\t\tDIE"},
	{"at-stop", "outbox/ending.go", `	l.stopping = true`, "TEXT\n\tDIE"},

	{"route-before-commit", "outbox/route.go", `		return r.apply(ctx, tx, &b)`, `		err = r.apply(ctx, tx, &b)
		DIE
		return err`},
	{"route-after-commit", "outbox/route.go", `	if err != nil {
		*r = before`, `	if err == nil && n > 0 {
		DIE
	}
TEXT`},

	{"operation-begun", operation, `		return nil, fmt.Errorf("begin %s: %w", op.Command, err)
	}
	return run, nil`, `		return nil, fmt.Errorf("begin %s: %w", op.Command, err)
	}
	DIE
	return run, nil`},
	{"step-before-commit", operation, `		return r.save(ctx, tx, p)`, `		err = r.save(ctx, tx, p)
		DIE
		return err`},
	{"step-after-commit", operation, `	r.Progress = p
	return n, nil
}

func (r *Run) rehearse(`, `	DIE
TEXT`},
	{"before-operation-end", operation, `	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), operationLimits.statement)`, "\tDIE\nTEXT"},

	{"migration-before-commit", up, `	return s.record(ctx, tx, m)
}

func (s *Schema) record(`, `	err := s.record(ctx, tx, m)
	DIE
	return err
}

func (s *Schema) record(`},
	{"migration-after-commit", up, `		did, err := w.apply(ctx, m)`, `TEXT
		if did {
			DIE
		}`},
	{"index-built", "migrate/index.go", `	return true, w.outside(ctx, conn, ix, ix.buildSQL())`, `	err = w.outside(ctx, conn, ix, ix.buildSQL())
	DIE
	return true, err`},
}
