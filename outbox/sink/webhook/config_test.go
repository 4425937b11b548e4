package webhook_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

func TestSenselessSettingIsNamed(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	const url = "https://example.com/hook"
	for _, tt := range []struct {
		name   string
		config webhook.Config
		want   string // how the error begins
	}{
		{"no URL", webhook.Config{}, "url: must begin with http:// or https://"},
		{"another scheme", webhook.Config{URL: "ftp://example.com"}, "url: must begin with"},
		{"no host", webhook.Config{URL: "https:///hook"}, "url: has no host"},
		{"a host and a port alone", webhook.Config{URL: "localhost:8080"}, "url: must begin with"},
		{"a port out of range", webhook.Config{URL: "https://example.com:65536/"}, "url: the port is not in 1..65535"},
		{"port zero", webhook.Config{URL: "https://example.com:0/"}, "url: the port is not in 1..65535"},
		{"a port that is a word", webhook.Config{URL: "https://example.com:abc/"}, "url: not a URL"},
		{"a control character", webhook.Config{URL: "https://example.com/\n"}, "url: not a URL"},
		{"a literal loopback address", webhook.Config{URL: "http://127.0.0.1/"}, "url: 127.0.0.1 is not public; allow_private opens it"},
		{"localhost", webhook.Config{URL: "http://LocalHost.:80/"}, "url: 127.0.0.1 is not public; allow_private opens it"},
		{"a mapped literal", webhook.Config{URL: "http://[::ffff:10.0.0.1]/"}, "url: ::ffff:10.0.0.1 is not public"},
		{"metadata, even with allow_private", webhook.Config{URL: "http://169.254.169.254/latest", AllowPrivate: true},
			"url: 169.254.169.254 is not public"},
		{"metadata by IPv6, even with allow_private", webhook.Config{URL: "http://[fd00:ec2::254]/", AllowPrivate: true},
			"url: fd00:ec2::254 is a metadata service"},
		{"metadata inside a link-local zone", webhook.Config{URL: "http://[fe80::1%25eth0]/", AllowPrivate: true}, "url: fe80::1%eth0 is not public"},
		{"a decimal address", webhook.Config{URL: "http://2130706433/", AllowPrivate: true}, "url: the host ends in a number"},
		{"a hexadecimal address", webhook.Config{URL: "http://0x7F000001/"}, "url: the host ends in a number"},
		{"an octal address", webhook.Config{URL: "http://0177.0.0.1/"}, "url: the host ends in a number"},
		{"a short address", webhook.Config{URL: "http://127.1:8080/"}, "url: the host ends in a number"},
		{"a hexadecimal last part", webhook.Config{URL: "http://169.254.169.0xfe/"}, "url: the host ends in a number"},
		{"an address with a dot behind", webhook.Config{URL: "http://127.0.0.1./"}, "url: the host ends in a number"},
		{"an address out of range", webhook.Config{URL: "http://1.2.3.256/"}, "url: the host ends in a number"},
		{"an empty hexadecimal number", webhook.Config{URL: "http://example.0x/"}, "url: the host ends in a number"},
		{"an unknown format", webhook.Config{URL: url, Format: "xml"}, `format: "xml" is unknown; known: envelope, payload`},
		{"sent_at in a bare payload", webhook.Config{URL: url, Format: webhook.Payload, BodySentAt: true}, "body: with_sent_at needs"},
		{"a negative timeout", webhook.Config{URL: url, Timeout: -time.Second}, "request_timeout: -1s is negative"},
		{"a negative parallel", webhook.Config{URL: url, Parallel: -1}, "parallel: -1 is negative"},
		{"a secret that is not base64", webhook.Config{URL: url, Secrets: []string{plain, "whsec_!"}}, "secret 2: "},
		{"a header of ours", webhook.Config{URL: url, Headers: map[string]string{"x-signature": "x"}}, "headers: x-signature is set by outboxctl"},
		{"a header of the connection's", webhook.Config{URL: url, Headers: map[string]string{"Transfer-Encoding": "x"}},
			"headers: Transfer-Encoding is set"},
		{"a header that is no name", webhook.Config{URL: url, Headers: map[string]string{"X: y\r\nZ": "x"}}, "headers: \"X: y\\r\\nZ\" is not"},
		{"a header value with a line break", webhook.Config{URL: url, Headers: map[string]string{"X-A": "x\r\nX-B: y"}},
			"headers: the value of X-A holds"},
		{"a CA file that is not there", webhook.Config{URL: url, CAFile: "/no/such.pem"}, "ca_file: open /no/such.pem"},
		{"a CA file without a certificate", webhook.Config{URL: url, CAFile: empty}, "ca_file: " + empty + " holds no certificate"},
		{"half a client certificate", webhook.Config{URL: url, ClientCertFile: empty}, "client_cert_file and client_key_file go together"},
		{"a client certificate that is none", webhook.Config{URL: url, ClientCertFile: empty, ClientKeyFile: empty}, "client_cert_file: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := webhook.New(tt.config)
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("New() = %v, want %s…", err, tt.want)
			}
		})
	}
}

func TestNamesWithNumbersAreNames(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"1and1.com", "web1", "3.pool.ntp.org", "0xy", "7f00001.example", "10.0.0.1.nip.io"} {
		newSink(t, webhook.Config{URL: "https://" + host + "/"})
	}
}

func TestPasswordAndQueryOfAURLAreNeverShown(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"https://user:CANARY@127.0.0.1/hook?token=CANARY", "https://user:CANARY%zz@example.com/", "https://user:CAN#ARY@example.com/",
		"https://user:CANARY@example.com:abc/?CANARY", "ftp://user:CANARY@example.com/", "https://user:CANARY@/hook",
		"https://user:CANARY@example.com:99999/", "user:CANARY@example.com", "https://CANARY@[::1/",
	} {
		_, err := webhook.New(webhook.Config{URL: url})
		if err == nil || strings.Contains(err.Error(), "CAN") {
			t.Errorf("New(%s) = %v, want an error without the password", url, err)
		}
	}
	s := newSink(t, webhook.Config{URL: "http://user:CANARY@example.com/hook/7?token=CANARY#CANARY"})
	if got, want := s.String(), "http://example.com/hook/7"; got != want {
		t.Errorf("String() = %s, want %s", got, want)
	}
	if got := strings.Join(s.Warnings(), "\n"); strings.Contains(got, "CANARY") {
		t.Errorf("Warnings() = %s", got)
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	const unsigned = "no secret: requests are not signed, so receivers cannot tell who sent them"
	inClear := func(host string) string {
		return "plain http to " + host + ": everyone on the way can read the events; use https"
	}
	for _, tt := range []struct {
		name    string
		url     string
		secrets []string
		want    []string
	}{
		{"nothing", "https://example.com/", []string{plain}, nil},
		{"no secret", "https://example.com/", []string{"", ""}, []string{unsigned}},
		{"short secrets", "https://example.com/", []string{plain, "short", "whsec_AAAA"},
			[]string{"secret 2 has 5 bytes; 24 or more are safe", "secret 3 has 3 bytes; 24 or more are safe"}},
		{"24 bytes in base64", "https://example.com/", []string{whsec}, nil},
		{"plain http to a public name", "http://example.com:8080/", []string{plain}, []string{inClear("example.com:8080")}},
		{"plain http to a public address", "http://8.8.8.8/", []string{plain}, []string{inClear("8.8.8.8")}},
		{"plain http to this machine", "http://127.0.0.1:80/", []string{plain}, nil},
		{"plain http to localhost", "http://localhost/", []string{plain}, nil},
		{"plain http inside a network", "http://10.0.0.1/", []string{plain}, nil},
		{"plain http to a container", "http://receiver:8080/", []string{plain}, nil},
		{"plain http to an internal name", "http://crm.internal/", []string{plain}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := newSink(t, webhook.Config{URL: tt.url, Secrets: tt.secrets}).Warnings(); !slices.Equal(got, tt.want) {
				t.Errorf("Warnings() = %q, want %q", got, tt.want)
			}
		})
	}
}
