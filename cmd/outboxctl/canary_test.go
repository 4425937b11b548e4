package main_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// bird is what must not be seen, wherever it was put. It needs no encoding anywhere.
const bird = "CANARY7f3a"

// told is an answer that tells the canary in every place an answer has.
func told(status int) outboxtest.Answer {
	return outboxtest.Answer{Status: status, Body: bird, Header: http.Header{
		"Set-Cookie": {"session=" + bird}, "Location": {"/" + bird}, "X-Request-Id": {"req 7 " + bird}, // no id: it has blanks
		"Retry-After": {bird}, "Www-Authenticate": {bird}, "Webhook-Delivery": {bird}, "X-" + bird: {bird},
	}}
}

// tellTales lists what a receiver may do to an event, by the event's type.
var tellTales = map[string]outboxtest.Answer{
	"200": told(200), "301": told(301), "302": told(302), "400": told(400), "401": told(401), "404": told(404), "410": told(410), "413": told(413),
	"422": told(422), "429": told(429), "500": told(500), "501": told(501), "503": told(503), "999": told(999),
	"status":   {Raw: "HTTP/1.1 500 " + bird + "\r\nContent-Length: 0\r\n\r\n"},
	"raw":      {Raw: bird + "\r\n\r\n"},
	"header":   {Raw: "HTTP/1.1 200 OK\r\n" + bird + "\r\n\r\n"},
	"length":   {Raw: "HTTP/1.1 200 OK\r\nContent-Length: " + bird + "\r\n\r\n"},
	"encoding": {Raw: "HTTP/1.1 200 OK\r\nTransfer-Encoding: " + bird + "\r\n\r\n"},
	"version":  {Raw: "HTTP/" + bird + " 200 OK\r\n\r\n"},
	"huge":     {Raw: "HTTP/1.1 200 OK\r\nX: " + strings.Repeat(bird, 1<<17) + "\r\n\r\n"},
	"stall":    {Status: 200, Body: bird, Stall: true},
	"hang":     {Hang: true},
	"reset":    {Reset: true},
	"eof":      {HalfClose: true},
}

// insertTold commits an event of a type with the canary wherever a producer may put one.
func insertTold(t *testing.T, db *pgxpool.Pool, eventType, headers string) {
	t.Helper()
	execute(t, db, `insert into outbox (tenant_id, aggregate_type, aggregate_id, event_type, headers, payload)
		values ($1, $1, $1, $2, $3::text::jsonb, jsonb_build_object($1::text, $1::text))`, bird, eventType, strings.ReplaceAll(headers, "BIRD", bird))
}

// B71: payloads, tenants, headers, secrets, and the user and query of a URL are in no output, in no
// column about what happened, and not in the process list.
func TestNothingPrivateIsTold(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	to := outboxtest.NewReceiver(t, func(_ int, r *outboxtest.Request) outboxtest.Answer {
		return tellTales[r.Header.Get("X-Outbox-Event-Type")]
	})
	for eventType := range tellTales {
		insertTold(t, db, eventType, `{"authorization": "BIRD", "traceparent": "BIRD", "BIRD": "BIRD"}`)
	}
	insertTold(t, db, "headers that are none", `["BIRD"]`)
	insertTold(t, db, "a header that is none", `{"BIRD": {"BIRD": "BIRD"}}`)
	insertTold(t, db, "too large", `{}`)
	execute(t, db, `update outbox set payload = to_jsonb(repeat($1, 10000)) where event_type = 'too large'`, bird)

	file := filepath.Join(t.TempDir(), "secrets")
	if err := os.WriteFile(file, []byte(bird+bird+bird+"\n"+bird), 0o600); err != nil {
		t.Fatal(err)
	}
	target := strings.Replace(to.URL, "://", "://"+bird+":"+bird+"@", 1) + "/hooks?token=" + bird + "#" + bird
	env := []string{"DATABASE_URL=" + url, "WEBHOOK_URL=" + target, "OUTBOXCTL_SECRET_FILE=" + file,
		"OUTBOXCTL_ALLOW_PRIVATE=true", "OUTBOXCTL_LOG_LEVEL=debug", "OUTBOXCTL_REQUEST_TIMEOUT=1s", "OUTBOXCTL_MAX_PAYLOAD=10kB"}
	command := func(want int, args ...string) *process {
		t.Helper()
		p := startWith(t, env, args...)
		if line := commandLine(t, p); outboxtest.Secret(bird).In(line) != "" {
			t.Errorf("the process list shows %q", line)
		}
		if code := p.wait(patience); code != want {
			t.Errorf("%s: exit code %d, want %d", args, code, want)
		}
		return p
	}
	said := []*process{
		command(0, "dispatch", "--dry-run"),
		command(0, "dispatch", "--dry-run", "-o", "json"),
	}
	// Some answers pause the destination; a person resumes it, until each event has had its answer.
	sendAll := func(args ...string) {
		t.Helper()
		execute(t, db, `update outbox set status = 'pending', finished_at = null, next_attempt_at = null, available_at = now(), attempts = 0`)
		for left := 1; left > 0; left = query[int](t, db, `select count(*) from outbox where finished_at is null and attempts = 0`) {
			execute(t, db, `update outbox_destinations set paused_until = null`)
			said = append(said, command(3, append([]string{"dispatch", "--once", "--wait", "0s"}, args...)...))
		}
		execute(t, db, `update outbox_destinations set paused_until = null`)
	}
	sendAll()
	sendAll("--log-format", "json", "--max-attempts", "1")
	execute(t, db, `update outbox set tenant_id = 'acme'`) // stats names tenants: it is asked for them
	said = append(said,
		command(0, "stats"),
		command(0, "stats", "-o", "json"))

	// Destinations that cannot be reached, each in its way.
	for _, away := range []string{"http://127.0.0.1:1/", "http://no-such-host.invalid/", "https://" + strings.TrimPrefix(to.URL, "http://"), selfSigned(t)} {
		execute(t, db, `update outbox set status = 'pending', finished_at = null, next_attempt_at = null, attempts = 0 where event_type in ('200', '422')`)
		env[1] = "WEBHOOK_URL=" + strings.Replace(away, "://", "://"+bird+":"+bird+"@", 1) + "?" + bird
		said = append(said, command(0, "dispatch", "--once", "--wait", "0s"))
	}
	// Settings that are wrong.
	for _, bad := range []string{"ftp://BIRD:BIRD@example.com/?BIRD", "http://BIRD:BIRD@127.0.0.1:99999/BIRD", "http://BIRD:BIRD%zz@example.com/?BIRD", "BIRD:BIRD@example.com"} {
		env[1] = "WEBHOOK_URL=" + strings.ReplaceAll(bad, "BIRD", bird)
		said = append(said, command(2, "dispatch"))
	}
	// A row that PostgreSQL refuses to change, with the row in its words.
	env[1] = "WEBHOOK_URL=" + to.URL
	execute(t, db, `create function refuse() returns trigger language plpgsql as $$
		begin raise exception 'no change' using detail = new::text, hint = new.payload::text, errcode = '23514'; end $$`)
	execute(t, db, `update outbox set status = 'pending', finished_at = null, next_attempt_at = null, attempts = 0 where event_type = '200'`)
	execute(t, db, `create trigger refuse before update on outbox for each row when (new.status = 'delivered') execute function refuse()`)
	refused := startWith(t, env, "dispatch")
	refused.says("no change")
	refused.kill()
	said = append(said, refused)

	for _, p := range said {
		if text := p.out.String() + p.err.String(); outboxtest.Secret(bird).In(text) != "" {
			t.Errorf("outboxctl %s tells: %s", strings.Join(p.cmd.Args[1:], " "), text)
		}
	}
	kept := query[string](t, db, `select string_agg(concat_ws(' ', receipt, error, error_kind, lease), ' ') from outbox`) +
		query[string](t, db, `select string_agg(concat_ws(' ', error, error_kind, lease, outcome), ' ') from outbox_attempts`) +
		query[string](t, db, `select string_agg(r::text, ' ') from outbox_rollup r`)
	if outboxtest.Secret(bird).In(kept) != "" {
		t.Errorf("the tables tell: %s", kept)
	}
	if longest := query[int](t, db, `select max(octet_length(error)) from outbox_attempts`); longest > 1024 {
		t.Errorf("an error of %d bytes is kept, want 1 KB at most", longest)
	}
	everyKind(t, db)
}

// everyKind makes sure that the failures which the test is about have come.
func everyKind(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	kinds := strings.Fields(query[string](t, db, `select string_agg(distinct error_kind, ' ') from outbox_attempts`))
	for _, kind := range []string{"http", "redirect", "timeout", "dns", "refused", "reset", "eof", "protocol", "invalid", "oversize", "tls:not_tls", "tls:unknown_authority"} {
		if !slices.Contains(kinds, kind) {
			t.Errorf("no attempt of kind %s in %v", kind, kinds)
		}
	}
}

// selfSigned is the URL of a receiver that nobody vouches for.
func selfSigned(t *testing.T) string {
	t.Helper()
	to := httptest.NewUnstartedServer(http.NotFoundHandler())
	to.Config.ErrorLog = log.New(io.Discard, "", 0)
	to.StartTLS()
	t.Cleanup(to.Close)
	return to.URL
}

// A password in a flag can be seen by others, which is said.
func TestPasswordInTheTargetFlagIsWarnedOf(t *testing.T) {
	t.Parallel()
	url, _ := database(t)
	const warning = "a password in --to is visible in the process list"
	target := "http://app:" + bird + "@127.0.0.1:1/"
	for _, tt := range []struct {
		name string
		env  string
		args []string
		want bool
	}{
		{"two words", "A=b", []string{"--to", target}, true},
		{"one word", "A=b", []string{"--to=" + target}, true},
		{"environment", "WEBHOOK_URL=" + target, nil, false},
		{"no password", "A=b", []string{"--to", "http://127.0.0.1:1/"}, false},
	} {
		p := startWith(t, []string{"DATABASE_URL=" + url, tt.env}, append([]string{"dispatch", "--once", "--allow-private"}, tt.args...)...)
		p.wait(patience)
		if got := strings.Contains(p.err.String(), warning); got != tt.want || outboxtest.Secret(bird).In(p.err.String()) != "" {
			t.Errorf("%s: warned %v, want %v: %s", tt.name, got, tt.want, p.err.String())
		}
	}
}

// The proxy that everybody uses is not ours: what goes to a destination goes there or nowhere.
func TestProxyVariablesDoNotCount(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	insert(t, db, "order.created", 1)
	proxy := outboxtest.NewReceiver(t, nil)
	env := []string{"DATABASE_URL=" + url}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		env = append(env, name+"="+proxy.URL, strings.ToLower(name)+"="+proxy.URL)
	}
	p := startWith(t, env, "dispatch", "--to", "http://no-such-host.invalid/", "--once", "--wait", "0s")
	if code := p.wait(patience); code != 0 || proxy.Count() != 0 || !strings.Contains(p.err.String(), "error_kind=dns") {
		t.Errorf("exit code %d, %d requests to the proxy, want none and a look-up that fails", code, proxy.Count())
	}
}

// B42: a private authority and a client certificate come from files.
func TestCertificateFilesAreUsed(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	insert(t, db, "order.created", 1)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	pair := writeCertificate(t, cert, key)
	to := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
	to.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert}
	to.Config.ErrorLog = log.New(io.Discard, "", 0)
	to.StartTLS()
	defer to.Close()
	flags := []string{"--wait", "0s", "--ca-file", cert}
	if code, words := once(t, url, to.URL, flags...); code != 0 || !strings.Contains(words, "error_kind=tls:client_certificate") {
		t.Errorf("without a certificate: exit code %d: %s", code, words)
	}
	execute(t, db, `update outbox set next_attempt_at = null`)
	if code, words := once(t, url, to.URL, append(flags, "--client-cert-file", cert, "--client-key-file", key)...); code != 0 {
		t.Errorf("with a certificate: exit code %d: %s", code, words)
	}
	allDelivered(t, db, 1)
	if code, words := once(t, url, to.URL, "--client-cert-file", cert); code != 2 || !strings.Contains(words, "--client-cert-file and --client-key-file go together") {
		t.Errorf("with half of a certificate: exit code %d: %s", code, words)
	}
}

// writeCertificate makes a certificate of 127.0.0.1 that vouches for itself, and writes it as files.
func writeCertificate(t *testing.T, cert, key string) tls.Certificate {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: encoded}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}
}
