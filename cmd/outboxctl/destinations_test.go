package main_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

const (
	crmSecret    = "a-secret-of-more-than-24-bytes"
	crmSecretOld = "an-older-secret-of-as-many-bytes"
	mailSecret   = "another-secret-of-more-than-24-bytes"
)

// example is docs/destinations.md's whole file, to the letter, with a receiver for each of its destinations.
type example struct {
	file               string
	env                []string
	crm, mail, staging *outboxtest.Receiver
	graveyard          string
}

func newExample(t *testing.T, url string) example {
	t.Helper()
	page, err := os.ReadFile("../../docs/destinations.md")
	if err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(page)
	if text == nil {
		t.Fatal("docs/destinations.md has no example")
	}
	dir := t.TempDir()
	x := example{
		file: filepath.Join(dir, "outboxctl.yaml"), graveyard: filepath.Join(dir, "dead.ndjson"),
		staging: outboxtest.NewReceiver(t, nil),
		// A body says what it wants: 404 for good, or 422 and 503 at its first attempt.
		crm:  outboxtest.NewReceiver(t, asked(map[string]int{"404": 10, "422": 1})),
		mail: outboxtest.NewReceiver(t, asked(map[string]int{"503": 1})),
	}
	for name, text := range map[string]string{"outboxctl.yaml": string(text[1]), "mail.secret": mailSecret + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	own := writeCertificate(t, filepath.Join(dir, "mail-ca.pem"), filepath.Join(dir, "mail-key.pem"))
	client := writeCertificate(t, filepath.Join(dir, "mail-client.pem"), filepath.Join(dir, "mail-client-key.pem"))
	x.env = []string{
		"DATABASE_URL=" + url, "CRM_SECRET=" + crmSecret, "CRM_SECRET_OLD=" + crmSecretOld,
		"CRM_URL=" + x.crm.URL, "CRM_PRIVATE=true", "MAIL_URL=" + behindTLS(t, x.mail, own, client), "STAGING_URL=" + x.staging.URL, "DEAD_LETTERS=" + x.graveyard,
	}
	return x
}

// asked answers with the code that an event's payload wants, up to that attempt.
func asked(until map[string]int) func(int, *outboxtest.Request) outboxtest.Answer {
	return func(_ int, r *outboxtest.Request) (a outboxtest.Answer) {
		for code, attempt := range until {
			if strings.Contains(string(r.Body), `"answer": "`+code+`"`) && r.Attempt <= attempt {
				_, _ = fmt.Sscan(code, &a.Status)
			}
		}
		return a
	}
}

// behindTLS gives a receiver a front with a certificate that lets in nobody but a client with another.
func behindTLS(t *testing.T, to http.Handler, own, client tls.Certificate) (url string) {
	t.Helper()
	known, err := x509.ParseCertificate(client.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(known)
	front := httptest.NewUnstartedServer(to)
	front.TLS = &tls.Config{Certificates: []tls.Certificate{own}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	front.Config.ErrorLog = log.New(io.Discard, "", 0)
	front.StartTLS()
	t.Cleanup(front.Close)
	return front.URL
}

// specimen is an event and where it arrives, beside staging, which gets a copy of each.
type specimen struct {
	tenant, aggregate, id, event string
	version                      int
	headers, payload             string
	to                           string
}

// TestExampleOfDestinationsRuns runs the file of docs/destinations.md as it stands there: every event arrives
// where its comments say.
func TestExampleOfDestinationsRuns(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	x := newExample(t, url)
	specimens := []specimen{
		{event: "order.created", to: "crm"},
		{event: "email.welcome", payload: `{"email": "ann@example.com", "card": {"number": 4711}, "name": "Ann"}`, to: "mail"},
		{event: "sms.code", to: "mail"},
		{event: "paid", aggregate: "invoice", version: 2, headers: `{"region": "eu"}`, to: "crm mail"},
		{event: "paid", aggregate: "invoice", version: 1, headers: `{"region": "eu"}`, to: ""},
		{event: "paid", aggregate: "invoice", version: 2, headers: `{"region": "us"}`, to: ""},
		{event: "refund.made", to: ""},
		{event: "user.renamed", tenant: "initech", to: ""},
		{event: "order.refused", id: "1", payload: `{"answer": "404"}`, to: "crm graveyard"},
		{event: "order.after", id: "1", to: "crm"}, // on_dead: continue
		{event: "order.odd", id: "2", payload: `{"answer": "422"}`, to: "crm"},
		{event: "order.behind", id: "2", to: "crm"},
		{event: "order.large", payload: `{"text": "` + strings.Repeat("x", 1<<20) + `"}`, to: "graveyard"},
		{event: "email.late", payload: `{"answer": "503"}`, to: "mail"},
	}
	want := map[string]string{} // by key
	for i, s := range specimens {
		want[s.emit(t, db, i)] = s.to + " staging"
	}
	process := startWith(t, x.env, "dispatch", "--config", x.file)
	const open = `select count(*) from outbox
		where finished_at is null and error_kind is distinct from 'unrouted' and not (event_type = 'email.late' and destination = 'mail')`
	eventually(t, "what is routed has ended, but for what waits long for its retry", func() bool { return query[int](t, db, open) == 0 })
	if diff := cmp.Diff(sorted(want), sorted(x.arrived(t))); diff != "" {
		t.Errorf("where events arrived (-want +got):\n%s", diff)
	}
	x.checkRequests(t)
	late := query[time.Duration](t, db, `select o.next_attempt_at - a.at from outbox o join outbox_attempts a on a.event_id = o.id and a.attempt = 1
		where o.event_type = 'email.late'`)
	if late < 3*time.Second || late > 7*time.Second {
		t.Errorf("the retry of mail comes after %s, want 5s or so", late)
	}
	if n := query[int](t, db, `select count(*) from outbox where error_kind = 'unrouted'`); n != 4 {
		t.Errorf("%d events are unrouted, want 4", n)
	}
	shown := x.command(t, "events", "show", fmt.Sprint(query[int64](t, db, `select min(id) from outbox where event_type = 'email.welcome'`)))
	if strings.Contains(shown, "ann@") || strings.Contains(shown, "4711") || !strings.Contains(shown, "Ann") {
		t.Errorf("events show, with what is not to be shown of any payload:\n%s", shown)
	}
	x.checkTenth(t, db)
	process.stop()
}

// emit writes the event as a producer does and returns its key.
func (s specimen) emit(t *testing.T, db *pgxpool.Pool, i int) string {
	t.Helper()
	or := func(text, standard string) string {
		if text == "" {
			return standard
		}
		return text
	}
	return query[string](t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, schema_version, headers, payload)
		values ($1, $2, $3, $4, $5, $6, $7) returning idempotency_key::text`,
		s.tenant, or(s.aggregate, "thing"), or(s.id, fmt.Sprint("no ", i)), s.event, max(s.version, 1), or(s.headers, "{}"), or(s.payload, "{}"))
}

// arrived says by key where events came in, once for each first attempt.
func (x example) arrived(t *testing.T) map[string]string {
	t.Helper()
	at := map[string]string{}
	for name, r := range map[string]*outboxtest.Receiver{"crm": x.crm, "mail": x.mail, "staging": x.staging} {
		for _, request := range r.Requests() {
			if request.Attempt == 1 {
				at[request.Key] += " " + name
			}
		}
	}
	dead, err := os.ReadFile(x.graveyard)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(dead)) {
		at[regexp.MustCompile(`"idempotency_key": ?"([^"]+)"`).FindStringSubmatch(line)[1]] += " graveyard"
	}
	return at
}

// sorted puts the places of each event into an order.
func sorted(places map[string]string) map[string]string {
	places = maps.Clone(places)
	for key, text := range places {
		places[key] = strings.Join(slices.Sorted(slices.Values(strings.Fields(text))), " ")
	}
	return places
}

// command runs one with the file.
func (x example) command(t *testing.T, args ...string) string {
	t.Helper()
	p := startWith(t, x.env, append(args, "--config", x.file)...)
	if code := p.wait(patience); code != 0 {
		t.Fatalf("outboxctl %v: exit code %d: %s", args, code, p.err.String())
	}
	return p.out.String()
}

// checkRequests looks at what the file says of requests: signatures, headers, and order.
func (x example) checkRequests(t *testing.T) {
	t.Helper()
	var odd []string
	for _, r := range x.crm.Requests() {
		if err := webhook.VerifyBody(r.Header, r.Body, crmSecret); err != nil {
			t.Errorf("crm: X-Signature: %v", err)
		}
		for _, secret := range []string{crmSecret, crmSecretOld} {
			if err := webhook.Verify(r.Header, r.Body, secret); err != nil {
				t.Errorf("crm: webhook-signature: %v", err)
			}
		}
		if team := r.Header.Get("X-Team"); team != "billing" {
			t.Errorf("crm: X-Team = %q, want billing", team)
		}
		if e := envelope(t, r.Body); e.AggregateID == "2" {
			odd = append(odd, e.EventType)
		}
	}
	if want := []string{"order.odd", "order.odd", "order.behind"}; !slices.Equal(odd, want) {
		t.Errorf("crm: of one aggregate came %v, want %v", odd, want)
	}
	for _, r := range x.mail.Requests() {
		if err := webhook.Verify(r.Header, r.Body, mailSecret); err != nil {
			t.Errorf("mail: webhook-signature: %v", err)
		}
	}
	for _, r := range x.staging.Requests() {
		if r.Header.Get("X-Signature") != "" {
			t.Error("staging: signed without a secret")
		}
	}
}

// checkTenth has two tenants' users write twice each: a tenth of the users arrive, with both events.
func (x example) checkTenth(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	const users = 200
	before := x.staging.Count()
	execute(t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, payload)
		select case u % 2 when 0 then 'acme' else 'globex' end, 'user', u::text, 'user.renamed', '{}' from generate_series(1, 2) i, generate_series(1, $1::int) u`, users)
	x.staging.Wait(t, before+2*users, patience)
	const open = `select count(*) from outbox where destination = 'crm' and event_type = 'user.renamed' and finished_at is null`
	eventually(t, "the tenth is delivered", func() bool { return query[int](t, db, open) == 0 })
	of := map[string]int{}
	for _, r := range x.crm.Requests() {
		if e := envelope(t, r.Body); e.EventType == "user.renamed" {
			of[e.TenantID+" "+e.AggregateID]++
		}
	}
	if len(of) < users/20 || len(of) > users/5 {
		t.Errorf("%d of %d users go to crm, want a tenth", len(of), users)
	}
	for user, n := range of {
		if n != 2 {
			t.Errorf("%d of the two events of user %s went to crm", n, user)
		}
	}
}
