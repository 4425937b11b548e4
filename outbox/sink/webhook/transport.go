package webhook

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// The limits of a connection.
const (
	maxAnswerHeader = 64 << 10
	idleTimeout     = 30 * time.Second // below what most receivers allow, so that few close first
	pingAfter       = 10 * time.Second // of silence on an HTTP/2 connection with a request open
	pingTimeout     = 5 * time.Second
)

// newTransport makes the transport of one destination. Proxy variables do not count, nothing is
// unpacked (a small answer may unpack to gigabytes), an HTTP/2 receiver may send no more of an answer
// than is read of it, and its connection that went dead is found by pings in pingAfter + pingTimeout.
func newTransport(c Config, conf *tls.Config, d *net.Dialer) *http.Transport {
	return &http.Transport{
		DialContext:            dial(d),
		TLSClientConfig:        conf,
		TLSHandshakeTimeout:    c.Timeout,
		MaxIdleConnsPerHost:    c.Parallel,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxAnswerHeader,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout:           pingAfter,
			PingTimeout:               pingTimeout,
			MaxReceiveBufferPerStream: maxAnswer,
		},
	}
}

// dial counts what is written to the connections that d makes.
func dial(d *net.Dialer) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &conn{Conn: nc}, nil
	}
}
