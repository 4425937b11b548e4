package main_test

import (
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestClaimsStayCheapInALargeTableWithoutStatistics fills a table that nobody analyses: with
// delivered events, with events for later, with those of a tenant that hangs (B52), with an aggregate
// whose head fails where order is kept (B51). PostgreSQL explains every statement: B15.
func TestClaimsStayCheapInALargeTableWithoutStatistics(t *testing.T) {
	t.Parallel()
	rows, backlog := 200_000, 20_000
	if long {
		rows, backlog = 1_000_000, 100_000
	}
	c := cluster(t, outboxtest.Options{Settings: []string{"autovacuum = off", "max_wal_size = 4GB", "shared_buffers = 512MB"}})
	admin := connect(t, c.URL("postgres"))
	for _, tt := range []struct {
		name  string
		sql   string
		n     int
		flags []string
	}{
		{"delivered", `insert into outbox (aggregate_type, aggregate_id, event_type, payload, status, attempts, finished_at)
			select 'order', i::text, 'order.created', '{}', 'delivered', 1, now() from generate_series(1, $1::int) i`, rows, nil},
		{"later", `insert into outbox (aggregate_type, aggregate_id, event_type, payload, available_at)
			select 'order', i::text, 'order.created', '{}', now() + interval '1 hour' from generate_series(1, $1::int) i`, rows, nil},
		{"tenant", `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload)
			select 'acme', 'order', i::text, 'hangs', '{}' from generate_series(1, $1::int) i`, backlog,
			[]string{"--tenant-parallel", "4", "--tenant-rate", "20/s", "--request-timeout", "1s"}},
		{"aggregate", `insert into outbox (aggregate_type, aggregate_id, event_type, payload)
			select 'order', '0', 'fails', '{}' from generate_series(1, $1::int) i`, backlog,
			[]string{"--ordering", "aggregate", "--backoff", "50ms..200ms", "--max-attempts", "10000"}},
	} {
		execute(t, admin, `create database `+tt.name+` template template0`)
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if code, _, words := run(t, c.URL(tt.name), "migrate"); code != 0 {
				t.Fatalf("migrate: exit code %d: %s", code, words)
			}
			db := connect(t, c.URL(tt.name))
			execute(t, db, tt.sql, tt.n)
			insert(t, db, "order.paid", 20)
			deliverOneByOne(t, db, c.URL(tt.name), 20, tt.flags...)
			checkStatements(t, explained(t, c, tt.name))
		})
	}
}

// explain makes the server explain every statement of a session in its log.
const explain = "-c session_preload_libraries=auto_explain -c auto_explain.log_min_duration=0 " +
	"-c auto_explain.log_analyze=on -c auto_explain.log_buffers=on -c auto_explain.log_timing=off"

// deliverOneByOne runs a dispatcher, whose statements are explained, on what is there, and then on
// events that come one by one: several claims for each.
func deliverOneByOne(t *testing.T, db *pgxpool.Pool, dsn string, there int, flags ...string) {
	t.Helper()
	var paid atomic.Int64
	r := outboxtest.NewReceiver(t, func(_ int, r *outboxtest.Request) outboxtest.Answer {
		switch r.Header.Get("X-Outbox-Event-Type") {
		case "hangs":
			return outboxtest.Answer{Hang: true}
		case "fails":
			return outboxtest.Answer{Status: 503}
		}
		paid.Add(1)
		return outboxtest.Answer{}
	})
	arrived := func(n int) {
		eventually(t, fmt.Sprint(n, " events arrive"), func() bool { return paid.Load() >= int64(n) })
	}
	options := "options=" + strings.ReplaceAll(url.QueryEscape(explain), "+", "%20")
	dispatcher := dispatch(t, withSetting(dsn, options), r.URL, append([]string{"--poll-interval", "15ms"}, flags...)...)
	arrived(there)
	for i := range 50 {
		insert(t, db, "order.paid", 1)
		arrived(there + i + 1)
	}
	dispatcher.stop()
}

// checkStatements allows no scan of the table, no claim that reads much of an index, and no slow
// one.
func checkStatements(t *testing.T, statements []record) {
	t.Helper()
	var took []time.Duration
	pages := 0
	for _, r := range statements {
		if tableScan.MatchString(r.text) {
			t.Errorf("a statement scans the table: %s", r.text)
		}
		if !strings.Contains(r.text, "skip locked") {
			continue
		}
		if r.pages > 1000 {
			t.Errorf("a claim has read %d pages: %s", r.pages, r.text)
		}
		pages = max(pages, r.pages)
		took = append(took, r.took)
	}
	if len(took) < 50 {
		t.Fatalf("%d claims were explained, want 50 or more", len(took))
	}
	slow := percentile(took)
	if slow > 20*time.Millisecond {
		t.Errorf("claims take up to %s, want less than 20ms", slow)
	}
	t.Logf("%d claims, of %s and %d pages at most, p99 %s", len(took), took[len(took)-1], pages, took[len(took)*99/100])
}

// percentile is the 99th in the long form. In the short one it is the 90th: the tests beside this
// one keep the processors busy.
func percentile(took []time.Duration) time.Duration {
	slices.Sort(took)
	if long {
		return took[len(took)*99/100]
	}
	return took[len(took)*9/10]
}

// record is what auto_explain says about a statement.
type record struct {
	took  time.Duration
	pages int
	text  string
}

var (
	tableScan  = regexp.MustCompile(`(?m)Seq Scan on outbox( |$)`)
	logHead    = regexp.MustCompile(`(?m)^\d{4}-\d\d-\d\d [^\[]*\[\d+\] (\S*) LOG:  duration: ([\d.]+) ms  plan:`)
	logBuffers = regexp.MustCompile(`Buffers: shared((?: \w+=\d+)+)`)
	logPages   = regexp.MustCompile(`(?:hit|read)=(\d+)`)
)

// explained are the statements of a database, from the server's log.
func explained(t *testing.T, c *outboxtest.Cluster, database string) (records []record) {
	t.Helper()
	log, err := os.ReadFile(c.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	text := string(log)
	heads := logHead.FindAllStringSubmatchIndex(text, -1)
	for i, head := range heads {
		end := len(text)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		if text[head[2]:head[3]] != database {
			continue
		}
		ms, err := strconv.ParseFloat(text[head[4]:head[5]], 64)
		if err != nil {
			t.Fatal(err)
		}
		r := record{took: time.Duration(ms * float64(time.Millisecond)), text: text[head[1]:end]}
		if buffers := logBuffers.FindStringSubmatch(r.text); buffers != nil { // the first is the whole plan's
			for _, pages := range logPages.FindAllStringSubmatch(buffers[1], -1) {
				n, _ := strconv.Atoi(pages[1])
				r.pages += n
			}
		}
		records = append(records, r)
	}
	return records
}
