package main_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// logical is a server of its own whose log can be followed, with an outbox that is published: its URL
// and a pool of it.
func logical(t *testing.T, settings ...string) (*outboxtest.Cluster, string, *pgxpool.Pool) {
	t.Helper()
	c := cluster(t, outboxtest.Options{Settings: append([]string{"wal_level = logical"}, settings...)})
	url := c.URL("postgres")
	if code, _, words := run(t, url, "migrate", "--with", "wal,notify"); code != 0 {
		t.Fatal(words)
	}
	return c, url, connect(t, url)
}

const slotsSQL = `select count(*) from pg_replication_slots`

// followed returns when so many dispatchers follow the log.
func followed(t *testing.T, db *pgxpool.Pool, n int) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " follow the log"), func() bool {
		return query[int](t, db, slotsSQL+` where active and temporary and confirmed_flush_lsn is not null`) == n
	})
}

// B65, as far as a slot goes that lasts as long as its session: one that is suspended, killed or cut off
// keeps no slot, and what was committed meanwhile is delivered once.
func TestSlotsGoWithTheirDispatchers(t *testing.T) {
	t.Parallel()
	_, url, db := logical(t)
	r := outboxtest.NewReceiver(t, nil)
	d := dispatch(t, url, r.URL, "--wake", "wal", "--poll-interval", "60s")
	followed(t, db, 1)
	insert(t, db, "order.created", 1)
	r.Wait(t, 1, patience/2) // long before the next poll
	allDelivered(t, db, 1)

	d.signal(syscall.SIGSTOP)
	stopped := time.Now()
	insert(t, db, "order.created", 50)
	eventually(t, "the slot of the suspended process is gone", func() bool { return query[int](t, db, slotsSQL) == 0 })
	if took := time.Since(stopped); took > 25*time.Second {
		t.Errorf("the slot of a suspended process is gone after %s", took)
	}
	d.signal(syscall.SIGCONT)
	d.says("news are not heard, polling goes on")
	r.Wait(t, 51, patience)
	followed(t, db, 1)

	execute(t, db, `select pg_terminate_backend(active_pid) from pg_replication_slots`)
	insert(t, db, "order.created", 50)
	r.Wait(t, 101, patience/2)
	followed(t, db, 1)
	allDelivered(t, db, 101)

	d.kill()
	eventually(t, "the slot of the killed process is gone", func() bool { return query[int](t, db, slotsSQL) == 0 })
	insert(t, db, "order.created", 50)
	d = dispatch(t, url, r.URL, "--wake", "wal", "--poll-interval", "60s")
	r.Wait(t, 151, patience/2)
	followed(t, db, 1)
	d.stop()
	if n := query[int](t, db, slotsSQL); n != 0 {
		t.Errorf("%d slots are left behind", n)
	}
	allDelivered(t, db, 151)
	if got := r.Count(); got != 151 {
		t.Errorf("%d requests for 151 events", got)
	}
}

// B66: what PostgreSQL keeps apart from its row, and leaves out of the log when an update does not touch it, arrives whole.
func TestLargePayloadsArriveWholeBesideTheLog(t *testing.T) {
	t.Parallel()
	const n = 30
	_, url, db := logical(t)
	execute(t, db, `alter table outbox alter column payload set storage external`)
	execute(t, db, `create function noise(i int) returns text return (select string_agg(md5(i || ' ' || k), '') from generate_series(1, 320) k)`)
	for identity, event := range map[string]string{"default": "order.created", "full": "order.changed"} {
		execute(t, db, `alter table outbox replica identity `+identity)
		r := outboxtest.NewReceiver(t, func(i int, _ *outboxtest.Request) outboxtest.Answer {
			if i <= n {
				return outboxtest.Answer{Status: 503} // so that each row is updated again and again
			}
			return outboxtest.Answer{}
		})
		d := dispatch(t, url, r.URL, "--wake", "wal", "--poll-interval", "60s", "--backoff", "50ms..200ms", "--event-type", event)
		followed(t, db, 1)
		execute(t, db, `insert into outbox (aggregate_type, aggregate_id, event_type, payload)
			select 'order', i::text, $1, jsonb_build_object('text', noise(i)) from generate_series(1, $2::int) i`, event, n)
		r.Wait(t, 2*n, patience/2)
		eventually(t, "all are delivered", func() bool {
			return query[int](t, db, `select count(*) from outbox where event_type = $1 and status = 'delivered'`, event) == n
		})
		d.stop()
		for _, request := range r.Requests() {
			e := envelope(t, request.Body)
			if want := query[string](t, db, `select payload::text from outbox where idempotency_key = $1`, request.Key); string(e.Payload) != want || len(want) < 10_000 {
				t.Errorf("replica identity %s: %d bytes of event %s arrived, want the %d of its row", identity, len(e.Payload), e.Sequence, len(want))
			}
		}
	}
}

// B65: a standby that is promoted has no slot of ours. The dispatcher makes one there, and delivers what
// came before it did.
func TestFailoverIsFollowedByTheLog(t *testing.T) {
	t.Parallel()
	const n = 500
	c, _, db := logical(t)
	standby, err := c.Standby()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { standby.Close() })
	execute(t, db, `alter system set synchronous_standby_names = '*'`) // what is committed is on both
	execute(t, db, `select pg_reload_conf()`)
	eventually(t, "the standby is a synchronous one", func() bool {
		return query[int](t, db, `select count(*) from pg_stat_replication where sync_state = 'sync'`) == 1
	})
	second := strings.TrimSuffix(strings.TrimPrefix(standby.URL("postgres"), "postgres://postgres@"), "/postgres?sslmode=disable")
	both := strings.Replace(c.URL("postgres"), "/postgres?", ","+second+"/postgres?", 1)

	r := outboxtest.NewReceiver(t, nil)
	// What was claimed as the primary died may wait for its lease to lapse, which polling finds.
	d := dispatch(t, both, r.URL, "--wake", "wal", "--poll-interval", "5s", "--lease", "5s", "--request-timeout", "1s")
	followed(t, db, 1)
	insert(t, db, "order.created", n)
	r.Wait(t, n/10, patience)
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	d.says("news are not heard, polling goes on")
	if err := standby.Promote(); err != nil {
		t.Fatal(err)
	}
	db = connect(t, standby.URL("postgres"))
	followed(t, db, 1)
	allDelivered(t, db, n)
	insert(t, db, "order.created", n)
	allDelivered(t, db, 2*n)
	d.says("news are heard again")
	d.stop()
	const inFlight = 10
	if twice := r.Count() - len(r.ByKey()); len(r.ByKey()) != 2*n || twice > inFlight {
		t.Errorf("%d events were received, %d twice; want %d and no more than were in flight, %d", len(r.ByKey()), twice, 2*n, inFlight)
	}
}

// Dispatchers that poll, listen and follow work on one table, and deliver each event once.
func TestWaysToWakeGoTogether(t *testing.T) {
	t.Parallel()
	n := 2000
	if long {
		n = 50_000
	}
	_, url, db := logical(t)
	r := outboxtest.NewReceiver(t, nil)
	var all []*process
	for _, wake := range []string{"poll", "listen", "wal"} {
		all = append(all, dispatch(t, url, r.URL, "--wake", wake, "--batch-size", "20", "--log-level", "warn"))
	}
	followed(t, db, 1)
	for range 20 {
		insert(t, db, "order.created", n/20)
	}
	allDelivered(t, db, n)
	for _, d := range all {
		d.stop()
		if words := d.err.String(); strings.Contains(words, "news") {
			t.Errorf("trouble: %s", words)
		}
	}
	if got := r.Count(); got != n || len(r.ByKey()) != n {
		t.Errorf("%d requests for %d of %d events", got, len(r.ByKey()), n)
	}
}

// A role that may not replicate is told so in a line, with what to do, and delivers all the same. Roles of
// no rank see slots.
func TestRoleThatMayNotReplicatePolls(t *testing.T) {
	t.Parallel()
	_, url, db := logical(t)
	execute(t, db, `create role app login`)
	execute(t, db, `grant pg_read_all_data, pg_write_all_data to app`)
	r := outboxtest.NewReceiver(t, nil)
	url = strings.Replace(url, "postgres@", "app@", 1)
	d := dispatch(t, url, r.URL, "--wake", "wal")
	d.says(`level=WARN msg="news cannot be heard, polling goes on" error="the role may not replicate: alter role app replication (PostgreSQL: `)
	insert(t, db, "order.created", 1)
	r.Wait(t, 1, patience)
	execute(t, db, `alter role app replication`)
	d.says("news are heard again")
	followed(t, db, 1)
	execute(t, db, `alter role app noreplication`)
	if code, out, words := run(t, url, "stats"); code != 0 || !regexp.MustCompile(`(?m)^slots       outboxctl_[0-9a-f_]+ keeps [0-9.]+ \w*B of the log, reserved$`).MatchString(out) {
		t.Errorf("stats: exit code %d: %s%s", code, out, words)
	}
	d.stop()
}

// What docs/cdc.md gives to Debezium is each event once, without what becomes of it, and needs no more
// than the role there has.
func TestPublicationForConnectSendsEachEventOnce(t *testing.T) {
	t.Parallel()
	_, url, db := logical(t)
	text, err := os.ReadFile("../../docs/cdc.md")
	if err != nil {
		t.Fatal(err)
	}
	_, script, _ := strings.Cut(string(text), "```\ncreate role debezium ")
	script, _, _ = strings.Cut(script, "```")
	execute(t, db, "create role debezium "+script)
	reader := connect(t, strings.Replace(url, "postgres@", "debezium@", 1))
	execute(t, reader, `select pg_create_logical_replication_slot('outbox_debezium', 'pgoutput')`)
	insert(t, db, "order.created", 2)
	execute(t, db, `insert into outbox (source_id, aggregate_type, aggregate_id, event_type, payload, destination)
		select id, aggregate_type, aggregate_id, event_type, payload, 'crm' from outbox`)
	r := outboxtest.NewReceiver(t, nil)
	if code, words := once(t, url, r.URL); code != 0 {
		t.Fatal(words)
	}
	execute(t, db, `delete from outbox`)
	const messagesSQL = `
select coalesce(string_agg(chr(get_byte(data, 0)), '' order by n) filter (where get_byte(data, 0) not in (66, 67, 82)), '')
  from pg_logical_slot_get_binary_changes('outbox_debezium', null, null, 'proto_version', '1', 'publication_names', 'outbox_debezium')
  with ordinality as m (lsn, xid, data, n)` // but for B, C and R: begin, commit and relation
	if got := query[string](t, reader, messagesSQL); got != "II" {
		t.Errorf("Connect would read %q, want two inserts", got)
	}
}
