package main_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestEveryRefusalIsOneLineThatSaysWhatToDo asks servers for what they do not give: B22.
func TestEveryRefusalIsOneLineThatSaysWhatToDo(t *testing.T) {
	t.Parallel()
	c := cluster(t, outboxtest.Options{
		Password: "secret", TLS: true, Settings: []string{"max_connections = 8"},
		Access: []string{
			"hostssl all encrypted 127.0.0.1/32 scram-sha-256",
			"host all stranger 127.0.0.1/32 reject",
			"host all postgres,app,outsider 127.0.0.1/32 scram-sha-256",
		},
	})
	owner := c.URL("postgres")
	db := connect(t, owner)
	for _, role := range []string{"app", "outsider", "stranger", "encrypted"} {
		execute(t, db, `create role `+role+` login password 'secret'`)
	}
	for _, sql := range []string{
		`create database closed allow_connections false`,
		`create database private`,
		`revoke connect on database private from public`,
		`grant usage on schema public to app, encrypted`,
		`grant select on all tables in schema public to app, encrypted`,
	} {
		execute(t, db, sql)
	}
	plain := outboxtest.DB(t).Config().ConnConfig

	host := strings.TrimSuffix(strings.TrimPrefix(owner, "postgres://postgres:secret@"), "/postgres?sslmode=disable")
	at := func(user, database, params string) string {
		return fmt.Sprintf("postgres://%s:secret@%s/%s?%s", user, host, database, params)
	}
	authority := url.QueryEscape(c.Authority())
	tests := []struct {
		name string
		url  string
		says string // after the address; "" = it works
	}{
		{"good", at("app", "postgres", ""), ""},
		{"wrong password", strings.Replace(at("app", "postgres", ""), ":secret", ":wrong", 1),
			`database "postgres", refuses: password authentication failed for user "app"; check the user and the password`},
		{"missing database", at("app", "nowhere", ""),
			`database "nowhere", refuses: database "nowhere" does not exist; create it, or correct its name in the database URL`},
		{"database that takes nobody", at("app", "closed", ""),
			`database "closed", refuses: database "closed" is not currently accepting connections`},
		{"database of others", at("outsider", "private", ""),
			`database "private", refuses: permission denied for database "private"; grant connect on the database to the role`},
		{"rejected", at("stranger", "postgres", ""),
			`database "postgres", refuses: pg_hba.conf rejects connection for host "127.0.0.1", user "stranger", database "postgres", SSL encryption; ` +
				`the server's pg_hba.conf says who may connect and whether with TLS, sslmode whether we do`},
		{"without TLS where it is a must", at("encrypted", "postgres", "sslmode=disable"),
			`database "postgres", refuses: no pg_hba.conf entry for host "127.0.0.1", user "encrypted", database "postgres", no encryption; ` +
				`the server's pg_hba.conf says who may connect and whether with TLS, sslmode whether we do`},
		{"with TLS", at("encrypted", "postgres", "sslmode=verify-full&sslrootcert="+authority), ""},
		{"with the newest TLS", at("encrypted", "postgres", "ssl_min_protocol_version=TLSv1.3"), ""},
		{"with an authority that nobody trusts", at("encrypted", "postgres", "sslmode=verify-full"),
			`database "postgres", cannot be reached: x509: certificate signed by unknown authority; sslrootcert names the authorities to trust`},
		{"nobody listens", "postgres://app@127.0.0.1:1/shop", `database "shop", cannot be reached: connection refused`},
	}
	for _, tt := range tests {
		code, _, words := run(t, tt.url, "dispatch", "--to", "stdout:", "--once", "--dry-run")
		u, err := url.Parse(tt.url)
		if err != nil {
			t.Fatal(err)
		}
		want, wantCode := "outboxctl: PostgreSQL at "+u.Host+", "+tt.says+"\n", 4
		if tt.says == "" {
			want, wantCode = "", 0
		}
		if code != wantCode || words != want {
			t.Errorf("%s: exit code %d, says %swant %d, %s", tt.name, code, words, wantCode, want)
		}
	}

	code, _, words := run(t, fmt.Sprintf("postgres://%s@%s:%d/%s?sslmode=require", plain.User, plain.Host, plain.Port, plain.Database), "stats")
	if want := "cannot be reached: server refused TLS connection; it has no TLS: sslmode=disable does without\n"; code != 4 || !strings.HasSuffix(words, want) {
		t.Errorf("TLS of a server without: exit code %d, says %s", code, words)
	}
	full(t, at("app", "postgres", ""))
}

// full takes all connections of a server and has a dispatcher wait for some.
func full(t *testing.T, url string) {
	t.Helper()
	var taken []*pgx.Conn
	for range 20 {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			break
		}
		taken = append(taken, conn)
	}
	code, _, words := run(t, url, "stats")
	if want := "; raise max_connections, lower pool_max_conns, or put a pooler in between\n"; code != 4 || !strings.HasSuffix(words, want) || strings.Count(words, "\n") != 1 {
		t.Errorf("no connection left: exit code %d, says %s", code, words)
	}
	d := dispatch(t, url, "stdout:", "--log-level", "info")
	d.says("put a pooler in between")
	for _, conn := range taken {
		conn.Close(t.Context())
	}
	within(t, 5*time.Second, "the dispatcher has a connection", func() bool { return strings.Contains(d.err.String(), "PostgreSQL is back") })
	d.stop()
}

// TestTerminatedSessionsCostNoEvent ends sessions of dispatchers at random, five a second, while
// receivers fail a third of the requests. A result whose reply was lost is neither written twice nor
// forgotten.
func TestTerminatedSessionsCostNoEvent(t *testing.T) {
	t.Parallel()
	n, d := 1500, 4*time.Second
	if long {
		n, d = 20000, time.Minute
	}
	url, db := database(t)
	insert(t, db, "order.created", n)
	r := outboxtest.NewReceiver(t, func(n int, _ *outboxtest.Request) outboxtest.Answer {
		if n%3 == 0 {
			return outboxtest.Answer{Status: 503}
		}
		return outboxtest.Answer{Delay: 8 * time.Millisecond}
	})
	flags := []string{"--parallel", "4", "--lease", "2m", "--backoff", "100ms..200ms", "--max-attempts", "100", "--log-level", "error"}
	workers := []*process{dispatch(t, url, r.URL, flags...), dispatch(t, url, r.URL, flags...)}
	r.Wait(t, 10, patience)
	ended := 0
	for begin := time.Now(); time.Since(begin) < d; time.Sleep(200 * time.Millisecond) {
		ended += query[int](t, db, `
			select count(pg_terminate_backend(pid)) from (
				select pid from pg_stat_activity
				 where datname = current_database() and application_name = 'outboxctl' order by random() limit 1) one`)
	}
	// A claim whose reply was lost is nobody's until its lease ends.
	eventually(t, "all but lost claims is done", func() bool {
		open := query[int](t, db, `select count(*) from outbox where status = 'pending'`)
		before := r.Count()
		time.Sleep(500 * time.Millisecond)
		return open == 0 && r.Count() == before
	})
	lapse(t, db)
	allDelivered(t, db, n)
	for _, w := range workers {
		w.stop()
	}
	if ended < 5 {
		t.Errorf("only %d sessions were ended", ended)
	}
	yes, no := 0, 0
	for key, requests := range r.ByKey() {
		good := 0
		for _, request := range requests {
			if request.Answer.Status == 503 {
				no++
			} else {
				good++
			}
		}
		yes += good
		if good != 1 {
			t.Errorf("event %s was delivered %d times", key, good)
		}
	}
	written := query[int](t, db, `select count(*) from outbox_attempts`)
	claims := query[int](t, db, `select sum(attempts) from outbox`)
	counted := query[int](t, db, `select sum(n) from outbox_rollup`)
	if yes != n || written != no || claims < yes+no || counted != yes+no {
		t.Errorf("%d of %d delivered, %d attempts of %d written, %d of %d counted in rates, %d claims", yes, n, written, no, counted, yes+no, claims)
	}
}
