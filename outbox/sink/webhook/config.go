package webhook

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// Format is what a request's body holds.
type Format string

// The formats of a body.
const (
	// Envelope is the JSON object of [outbox.Event.AppendEnvelope]; the default.
	Envelope Format = "envelope"
	// Payload is the payload's bytes alone. Their content type is the row's header content-type,
	// else the configured one, else application/json, or application/octet-stream for bytes.
	Payload Format = "payload"
)

// The defaults of a [Config].
const (
	defaultTimeout  = 5 * time.Second
	defaultParallel = 10
)

// Config is one destination. Errors about it name the setting as the configuration file spells it.
type Config struct {
	URL     string // http or https; user:password@ becomes basic auth
	Format  Format // "" means Envelope
	Version string // for User-Agent

	Secrets []string          // all sign, the first also X-Signature; empty ones do not count
	Headers map[string]string // added to every request

	Timeout    time.Duration // until the answer's headers are complete; 0 means 5s
	Parallel   int           // connections kept for the next request; 0 means 10
	BodySentAt bool          // adds sent_at to the envelope: bodies then differ between attempts

	AllowPrivate   bool   // opens loopback, private networks, unique local addresses and CGNAT
	CAFile         string // PEM; these authorities alone are trusted; "" means the system's
	ClientCertFile string // PEM; shown to a receiver that asks for a certificate
	ClientKeyFile  string // PEM

	// Proxy is the http, https or socks5 URL of a proxy that all requests take; "" means none, whatever
	// the environment says. It may have a private address. What the destination's name resolves to is
	// the proxy's to judge then.
	Proxy string
}

// withDefaults fills what was left out.
func (c Config) withDefaults() Config {
	c.Format = cmp.Or(c.Format, Envelope)
	c.Timeout = cmp.Or(c.Timeout, defaultTimeout)
	c.Parallel = cmp.Or(c.Parallel, defaultParallel)
	return c
}

// check refuses what cannot work, before the first event is claimed.
func (c Config) check() error {
	switch {
	case c.Format != Envelope && c.Format != Payload:
		return fmt.Errorf("format: %q is unknown; known: %s, %s", c.Format, Envelope, Payload)
	case c.BodySentAt && c.Format == Payload:
		return errors.New("body: with_sent_at needs format envelope")
	case c.Timeout < 0:
		return fmt.Errorf("request_timeout: %s is negative", c.Timeout)
	case c.Parallel < 0:
		return fmt.Errorf("parallel: %d is negative", c.Parallel)
	case (c.ClientCertFile == "") != (c.ClientKeyFile == ""):
		return errors.New("client_cert_file and client_key_file go together")
	}
	return nil
}

// ours lists the headers that a configuration cannot set: the event's, and the connection's.
var ours = []string{
	"Connection", "Content-Length", "Expect", "Keep-Alive", "Proxy-Connection", "Te", "Traceparent", "Tracestate",
	"Trailer", "Transfer-Encoding", "Upgrade", "Webhook-Id", "Webhook-Signature", "Webhook-Timestamp",
	"X-Idempotency-Key", "X-Outbox-Attempt", "X-Outbox-Event-Type", "X-Signature",
}

// fixedHeader is what every request of the destination carries.
func (c Config) fixedHeader() (http.Header, error) {
	h := http.Header{"User-Agent": {userAgent(c.Version)}}
	for _, name := range slices.Sorted(maps.Keys(c.Headers)) {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		switch {
		case !isToken(name):
			return nil, fmt.Errorf("headers: %q is not a header's name", name)
		case slices.Contains(ours, canonical):
			return nil, fmt.Errorf("headers: %s is set by outboxctl", name)
		case !isFieldValue(c.Headers[name]):
			return nil, fmt.Errorf("headers: the value of %s holds a control character", name)
		}
		h[canonical] = []string{c.Headers[name]}
	}
	return h, nil
}

func userAgent(version string) string {
	if version == "" || !isVisible(version) {
		return "outboxctl"
	}
	return "outboxctl/" + version
}

// proxyURL is nil without a proxy. Its errors repeat nothing: there may be a password in it.
func (c Config) proxyURL() (*url.URL, error) {
	if c.Proxy == "" {
		return nil, nil
	}
	u, err := url.Parse(c.Proxy)
	if err != nil || u.Hostname() == "" || !slices.Contains([]string{"http", "https", "socks5"}, u.Scheme) {
		return nil, errors.New("proxy: want a URL such as http://proxy.example.com:3128, https or socks5")
	}
	return u, nil
}

// tlsConfig reads the certificate files.
func (c Config) tlsConfig() (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(c.Parallel)}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("ca_file: %s holds no certificate", c.CAFile)
		}
	}
	if c.ClientCertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.ClientCertFile, c.ClientKeyFile)
		if err != nil {
			return nil, fmt.Errorf("client_cert_file: %w", err)
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	return conf, nil
}

// isToken reports whether s can be a header's name (RFC 9110, 5.6.2).
func isToken(s string) bool {
	const others = "!#$%&'*+-.^_`|~"
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && !strings.ContainsRune(others, r)
	})
}

// isFieldValue reports whether s can be a header's value: no control characters but the tab.
func isFieldValue(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// isPrintable reports whether s is ASCII without control characters.
func isPrintable(s string) bool { return isVisible(strings.ReplaceAll(s, " ", "")) }

// isVisible reports whether s is ASCII that can be seen, without blanks.
func isVisible(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
