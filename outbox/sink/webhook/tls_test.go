package webhook_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

// certificate makes a self-signed one for 127.0.0.1 and localhost.
func certificate(t *testing.T, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "receiver"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func writePEM(t *testing.T, der []byte) (path string) {
	t.Helper()
	return writeBlock(t, "CERTIFICATE", der)
}

func writeBlock(t *testing.T, kind string, der []byte) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "block.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newTLSReceiver(t *testing.T, conf *tls.Config, http2 bool, handle http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(handle)
	s.TLS, s.EnableHTTP2 = conf, http2
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func accept(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }

// B42
func TestEveryTLSFailureIsSlowAndNamed(t *testing.T) {
	t.Parallel()
	valid := certificate(t, nil)
	expired := certificate(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	early := certificate(t, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) })
	elsewhere := certificate(t, func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"example.com"} })
	forClients := certificate(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
	for _, tt := range []struct {
		name    string
		server  *tls.Config
		trusted *tls.Certificate
		want    string
	}{
		{"expired", &tls.Config{Certificates: []tls.Certificate{expired}}, &expired, "tls:expired"},
		{"not valid yet", &tls.Config{Certificates: []tls.Certificate{early}}, &early, "tls:expired"},
		{"self-signed", &tls.Config{Certificates: []tls.Certificate{valid}}, nil, "tls:unknown_authority"},
		{"wrong name", &tls.Config{Certificates: []tls.Certificate{elsewhere}}, &elsewhere, "tls:wrong_name"},
		{"not for servers", &tls.Config{Certificates: []tls.Certificate{forClients}}, &forClients, "tls:bad_certificate"},
		{"TLS 1.0 only", &tls.Config{Certificates: []tls.Certificate{valid}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10},
			&valid, "tls:version"},
		{"TLS 1.1 only", &tls.Config{Certificates: []tls.Certificate{valid}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
			&valid, "tls:version"},
		{"client certificate demanded", &tls.Config{Certificates: []tls.Certificate{valid}, ClientAuth: tls.RequireAnyClientCert},
			&valid, "tls:client_certificate"},
		{"client certificate demanded by TLS 1.2", &tls.Config{Certificates: []tls.Certificate{valid}, ClientAuth: tls.RequireAnyClientCert,
			MaxVersion: tls.VersionTLS12}, &valid, "tls:handshake"},
		{"no common cipher", &tls.Config{Certificates: []tls.Certificate{valid}, MaxVersion: tls.VersionTLS12,
			CipherSuites: []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}}, &valid, "tls:handshake"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			config := webhook.Config{URL: newTLSReceiver(t, tt.server, false, accept).URL}
			if tt.trusted != nil {
				config.CAFile = writePEM(t, tt.trusted.Certificate[0])
			}
			want := answer{Verdict: outbox.VerdictSlow, Kind: tt.want}
			if got := deliver(t, newSink(t, config), sampleEvent()); got != want {
				t.Errorf("Deliver() = %+v, want %+v", got, want)
			}
		})
	}
}

func TestPlainHTTPWhereTLSWasAskedForIsNamed(t *testing.T) {
	t.Parallel()
	url := listen(t, reply("HTTP/1.1 400 Bad Request\r\n\r\n"))
	want := answer{Verdict: outbox.VerdictSlow, Kind: "tls:not_tls"}
	if got := deliver(t, newSink(t, webhook.Config{URL: "https" + url[len("http"):]}), sampleEvent()); got != want {
		t.Errorf("Deliver() = %+v, want %+v", got, want)
	}
}

func TestCAFileAndClientCertificateAreUsed(t *testing.T) {
	t.Parallel()
	server, client := certificate(t, nil), certificate(t, nil)
	pool := x509.NewCertPool()
	leaf, err := x509.ParseCertificate(client.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	pool.AddCert(leaf)
	to := newTLSReceiver(t, &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool},
		false, accept)
	key, err := x509.MarshalPKCS8PrivateKey(client.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	sink := newSink(t, webhook.Config{URL: to.URL, CAFile: writePEM(t, server.Certificate[0]),
		ClientCertFile: writePEM(t, client.Certificate[0]), ClientKeyFile: writeBlock(t, "PRIVATE KEY", key)})
	if got := deliver(t, sink, sampleEvent()); got != delivered("200") {
		t.Errorf("Deliver() = %+v", got)
	}
}

func TestHTTP2IsSpokenWhereItIsOffered(t *testing.T) {
	t.Parallel()
	cert := certificate(t, nil)
	proto := make(chan string, 1)
	to := newTLSReceiver(t, &tls.Config{Certificates: []tls.Certificate{cert}}, true, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if err := webhook.Verify(r.Header, body, plain); err != nil {
			t.Errorf("Verify() = %v", err)
		}
		proto <- r.Proto
		w.Write(make([]byte, 1000))
	})
	sink := newSink(t, webhook.Config{URL: to.URL, Secrets: []string{plain}, CAFile: writePEM(t, cert.Certificate[0])})
	if got := deliver(t, sink, sampleEvent()); got != delivered("200") {
		t.Fatalf("Deliver() = %+v", got)
	}
	if got := <-proto; got != "HTTP/2.0" {
		t.Errorf("the request came by %s, want HTTP/2.0", got)
	}
}

// B41, B32
func TestBrokenHTTP2StreamIsRetried(t *testing.T) {
	t.Parallel()
	cert := certificate(t, nil)
	for name, tt := range map[string]struct {
		handle func(to *httptest.Server) http.HandlerFunc
		want   answer
	}{
		"reset": {func(*httptest.Server) http.HandlerFunc {
			return func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
		}, answer{Kind: "reset"}},
		"connection closed": {func(to *httptest.Server) http.HandlerFunc {
			return func(_ http.ResponseWriter, r *http.Request) { to.CloseClientConnections(); <-r.Context().Done() }
		}, answer{Verdict: outbox.VerdictBrief, Kind: "eof"}},
		"answer": {func(*httptest.Server) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}
		}, delivered("200")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var handle http.HandlerFunc
			to := newTLSReceiver(t, &tls.Config{Certificates: []tls.Certificate{cert}}, true,
				func(w http.ResponseWriter, r *http.Request) { handle(w, r) })
			handle = tt.handle(to)
			sink := newSink(t, webhook.Config{URL: to.URL, CAFile: writePEM(t, cert.Certificate[0])})
			got := deliver(t, sink, sampleEvent())
			if name == "connection closed" && got.Kind == "reset" { // as the system tells it, by chance
				got.Kind = "eof"
			}
			if got != tt.want {
				t.Errorf("Deliver() = %+v, want %+v", got, tt.want)
			}
		})
	}
}
