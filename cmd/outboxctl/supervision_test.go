package main_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestSystemdIsToldWhatGoesOn is one life of a service of Type=notify with a watchdog: it waits for
// PostgreSQL, is ready, is fed while the loop goes on and starved while it hangs, is reloaded, loses
// PostgreSQL, and stops.
func TestSystemdIsToldWhatGoesOn(t *testing.T) {
	t.Parallel()
	url, db := database(t)
	insert(t, db, "order.created", 1234)
	r := outboxtest.NewReceiver(t, nil)
	manager := newManager(t)
	way := newWay(t, url)
	d := startWith(t, []string{"DATABASE_URL=" + way.url, "NOTIFY_SOCKET=" + manager.socket, "WATCHDOG_USEC=2000000"},
		"dispatch", "--to", r.URL, "--allow-private", "--poll-interval", "200ms", "--parallel", "32", "--batch-size", "500",
		"--secret-file", writeSecret(t, t.TempDir()+"/secrets", "the-secret-of-this-month-now"), "--log-level", "warn")

	manager.waitFor(t, "STATUS=waiting for PostgreSQL")
	if manager.has("READY=1") {
		t.Error("ready without PostgreSQL")
	}
	way.open(t)
	manager.waitFor(t, "READY=1")
	manager.waitFor(t, "STATUS=delivered 1,234")
	manager.waitForFood(t, 3)

	way.block() // the loop waits for an answer that does not come
	time.Sleep(1500 * time.Millisecond)
	manager.forget()
	time.Sleep(2500 * time.Millisecond)
	if manager.has("WATCHDOG=1") {
		t.Error("the watchdog was fed by a loop that hangs")
	}
	way.unblock()
	manager.waitForFood(t, 3)

	manager.forget()
	d.signal(syscall.SIGHUP)
	manager.waitFor(t, "RELOADING=1")
	manager.waitFor(t, "READY=1")

	way.shut() // PostgreSQL refuses connections: no reason to start again
	manager.waitFor(t, "STATUS=delivered 1,234; PostgreSQL does not answer")
	manager.waitForFood(t, 3)
	way.open(t)
	manager.forget()
	manager.waitFor(t, "STATUS=delivered 1,234")

	d.stop()
	manager.waitFor(t, "STOPPING=1")
}

// manager is the end of a service's notifications where systemd would be.
type manager struct {
	socket string

	mu    sync.Mutex
	lines []string // since the last forget
}

func newManager(t *testing.T) *manager {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "outboxctl-") // a socket's name is a short one
	if err != nil {
		t.Fatal(err)
	}
	m := &manager{socket: filepath.Join(dir, "notify")}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	var listener sync.WaitGroup
	listener.Go(func() { m.listen(conn) })
	t.Cleanup(func() {
		conn.Close()
		listener.Wait()
		os.RemoveAll(dir)
	})
	return m
}

func (m *manager) listen(conn *net.UnixConn) {
	buffer := make([]byte, 4096)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return
		}
		m.mu.Lock()
		m.lines = append(m.lines, strings.Split(string(buffer[:n]), "\n")...)
		m.mu.Unlock()
	}
}

// forget forgets what was heard so far.
func (m *manager) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lines = nil
}

func (m *manager) count(line string) (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, have := range m.lines {
		if have == line {
			n++
		}
	}
	return n
}

func (m *manager) has(line string) bool { return m.count(line) > 0 }

func (m *manager) waitFor(t *testing.T, line string) {
	t.Helper()
	eventually(t, line, func() bool { return m.has(line) })
}

// waitForFood waits until the watchdog was fed so many times from now on.
func (m *manager) waitForFood(t *testing.T, n int) {
	t.Helper()
	before := m.count("WATCHDOG=1")
	eventually(t, "the watchdog is fed", func() bool { return m.count("WATCHDOG=1") >= before+n })
}
