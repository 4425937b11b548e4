package webhook_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

const benchSecret = "a secret of more than 24 bytes"

// BenchmarkDeliver is a sink's speed against a local receiver; BenchmarkPlainClient is its ceiling.
func BenchmarkDeliver(b *testing.B) {
	url := benchReceiver(b)
	sink, err := webhook.New(webhook.Config{URL: url, Secrets: []string{benchSecret}, AllowPrivate: true, Parallel: 10})
	if err != nil {
		b.Fatal(err)
	}
	defer sink.Close()
	perSecond(b, func() error {
		_, err := sink.Deliver(b.Context(), sampleEvent())
		return err
	})
}

// BenchmarkPlainClient is what a hand-written worker does with net/http: the same body, one
// signature, a handful of headers.
func BenchmarkPlainClient(b *testing.B) {
	url := benchReceiver(b)
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 10}}
	defer client.CloseIdleConnections()
	perSecond(b, func() error { return plainPost(client, url) })
}

func plainPost(client *http.Client, url string) error {
	ev := sampleEvent()
	body := ev.AppendEnvelope(nil, time.Time{})
	req, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	mac := hmac.New(sha256.New, []byte(benchSecret))
	mac.Write(body)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Signature", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	req.Header.Set("X-Idempotency-Key", ev.Key.String())
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

func benchReceiver(b *testing.B) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
	}))
	b.Cleanup(server.Close)
	return server.URL
}

// perSecond runs ten senders at once, as a dispatcher with its defaults does.
func perSecond(b *testing.B, send func() error) {
	b.SetParallelism(5)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := send(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
