package outboxtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// patience is how long a start or stop may take on a busy machine.
const patience = time.Minute

// Options of a [Cluster]. The zero value is a cluster for fast tests.
type Options struct {
	Settings []string // lines for postgresql.conf, after and so above our own
	Fsync    bool     // write through to the disk, as a real server does
	Password string   // of the role postgres; "" trusts everyone who can reach 127.0.0.1
	Access   []string // lines of pg_hba.conf instead of those that trust
	TLS      bool     // with a certificate for 127.0.0.1, of an authority in [Cluster.Authority]
	Clock    bool     // a clock of its own, which [Cluster.Shift] moves; Linux with libfaketime alone
}

// Cluster is a throw-away PostgreSQL of this process. It ends with the process, however that ends.
// Its methods are for one goroutine at a time.
type Cluster struct {
	opts   Options
	bin    string
	dir    string // holds data and log; removed by the watchdog
	port   int
	as     *syscall.SysProcAttr
	clock  []string // the server's environment for a clock of its own
	guard  *watchdog
	server *exec.Cmd // nil = not running
	life   *os.File  // ends when the last of the server's processes does
	close  sync.Once
}

// alive holds the clusters that are not closed. Were one collected as garbage, the pipe to its
// watchdog would be closed with it, which means that this process is gone.
var alive sync.Map

// Start makes a cluster and starts it.
func Start(opts Options) (*Cluster, error) { return start(opts, (*Cluster).initdb) }

// start fills a folder by fill and starts a server on it.
func start(opts Options, fill func(*Cluster) error) (*Cluster, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	as, owner, err := unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "outboxctl-pg-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{opts: opts, bin: bin, dir: dir, as: as}
	if c.guard, err = watch(dir); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	alive.Store(c, nil)
	if err := c.create(owner, fill); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// create fills the folder and starts the server on a free port.
func (c *Cluster) create(owner *int, fill func(*Cluster) error) error {
	if owner != nil {
		if err := os.Chown(c.dir, *owner, -1); err != nil {
			return err
		}
	}
	if c.opts.Clock {
		if err := c.ownClock(); err != nil {
			return err
		}
	}
	if err := errors.Join(fill(c), c.certify(owner)); err != nil {
		return err
	}
	// A port that was free may be taken by the time the server binds it.
	var err error
	for range 5 {
		if c.port, err = freePort(); err != nil {
			return err
		}
		if err = c.configure(); err != nil {
			return err
		}
		if err = c.start(); err == nil {
			return nil
		}
	}
	return err
}

func (c *Cluster) initdb() error {
	args := []string{"-D", c.data(), "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync", "-A", "trust"}
	if c.opts.Password != "" {
		file := filepath.Join(c.dir, "password")
		if err := os.WriteFile(file, []byte(c.opts.Password+"\n"), 0o644); err != nil {
			return err
		}
		defer os.Remove(file)
		args = append(args[:len(args)-1], "scram-sha-256", "--pwfile", file)
	}
	out, err := c.command("initdb", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("initdb: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// configure writes our settings and the caller's behind those of initdb. The last one counts.
func (c *Cluster) configure() error {
	if len(c.opts.Access) > 0 {
		access := strings.Join(c.opts.Access, "\n") + "\n"
		if err := os.WriteFile(filepath.Join(c.data(), "pg_hba.conf"), []byte(access), 0o600); err != nil {
			return err
		}
	}
	lines := []string{
		"listen_addresses = '127.0.0.1'",
		"port = " + strconv.Itoa(c.port),
		"unix_socket_directories = ''",
		"max_connections = 200",
		"log_line_prefix = '%m [%p] %d '",
		"fsync = " + onOff(c.opts.Fsync),
		"full_page_writes = " + onOff(c.opts.Fsync),
	}
	if c.opts.TLS {
		lines = append(lines, "ssl = on", "ssl_cert_file = '"+c.Authority()+"'", "ssl_key_file = '"+c.keyFile()+"'")
	}
	lines = append(lines, c.opts.Settings...)
	file := filepath.Join(c.data(), "outboxtest.conf")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		return err
	}
	conf := filepath.Join(c.data(), "postgresql.conf")
	text, err := os.ReadFile(conf)
	if err != nil {
		return err
	}
	const include = "include 'outboxtest.conf'\n"
	if strings.HasSuffix(string(text), include) {
		return nil
	}
	return os.WriteFile(conf, append(text, include...), 0o600)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// start starts the server and returns when it takes connections. No goroutine waits for its end, so
// that tests may look for goroutines that leak.
func (c *Cluster) start() error {
	log, err := os.OpenFile(c.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	life, held, err := os.Pipe()
	if err != nil {
		return err
	}
	defer held.Close()
	server := c.command("postgres", "-D", c.data())
	server.Stdout, server.Stderr = log, log
	server.Env = append(server.Env, c.clock...)
	server.ExtraFiles = []*os.File{held} // its children inherit it
	if err := server.Start(); err != nil {
		life.Close()
		return fmt.Errorf("start postgres: %w", err)
	}
	held.Close() // from here on the server alone holds it
	c.server, c.life = server, life
	c.guard.started(server.Process.Pid)
	if err := c.ready(); err != nil {
		return fmt.Errorf("%w: %s", errors.Join(err, c.end(syscall.SIGQUIT)), c.lastLog())
	}
	return nil
}

// ready waits until the server's own pid file says that it is ready. A connection would not do:
// on a port lost to someone else, someone else would answer.
func (c *Cluster) ready() error {
	pid := strconv.Itoa(c.server.Process.Pid)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		text, _ := os.ReadFile(filepath.Join(c.data(), "postmaster.pid"))
		lines := strings.Split(string(text), "\n")
		if len(lines) > 7 && lines[0] == pid && strings.TrimSpace(lines[7]) == "ready" {
			return nil
		}
		if c.gone(10 * time.Millisecond) {
			return errors.New("postgres ended at its start")
		}
	}
	return fmt.Errorf("postgres not ready after %s", patience)
}

// gone waits up to d for the server's end and reports whether it has come.
func (c *Cluster) gone(d time.Duration) bool {
	c.life.SetReadDeadline(time.Now().Add(d))
	_, err := c.life.Read(make([]byte, 1))
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// URL returns the URL of one of the cluster's databases, for its superuser.
func (c *Cluster) URL(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.User("postgres"),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	if c.opts.Password != "" {
		u.User = url.UserPassword("postgres", c.opts.Password)
	}
	return u.String()
}

// LogFile returns the path of the server's log.
func (c *Cluster) LogFile() string { return filepath.Join(c.dir, "postgres.log") }

// Stop stops the server, keeping its data. The mode is pg_ctl's: "smart" waits for clients to
// leave, "fast" sends them away, "immediate" ends without a checkpoint.
func (c *Cluster) Stop(mode string) error {
	signals := map[string]syscall.Signal{"smart": syscall.SIGTERM, "fast": syscall.SIGINT, "immediate": syscall.SIGQUIT}
	signal, ok := signals[mode]
	if !ok {
		return fmt.Errorf("stop: no mode %q", mode)
	}
	return c.end(signal)
}

// Kill ends the server as a crash does (SIGKILL), keeping its data.
func (c *Cluster) Kill() error { return c.end(syscall.SIGKILL) }

// Restart starts the server again on its port, after a fast stop if it is running.
func (c *Cluster) Restart() error {
	if err := c.end(syscall.SIGINT); err != nil {
		return err
	}
	return c.start()
}

// Close stops the server and removes its data. It need not be called: the process's end does it.
func (c *Cluster) Close() error {
	var err error
	c.close.Do(func() {
		err = errors.Join(c.end(syscall.SIGQUIT), c.guard.dismiss())
		alive.Delete(c)
	})
	return err
}

// end sends a signal to the server and waits until it and its backends are gone.
func (c *Cluster) end(signal syscall.Signal) error {
	if c.server == nil {
		return nil
	}
	if err := c.server.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if !c.gone(patience) {
		return fmt.Errorf("postgres still runs %s after %s", patience, signal)
	}
	c.server.Wait() // its state says nothing that its log does not say better
	c.guard.ended()
	c.server = nil
	return c.life.Close()
}

func (c *Cluster) data() string { return filepath.Join(c.dir, "data") }

// command runs one of the server's binaries in the cluster's folder: the current one may be closed
// to the user that it runs as. It is out of reach of the terminal's Ctrl-C.
func (c *Cluster) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.bin, name), args...)
	cmd.Dir = c.dir
	cmd.SysProcAttr = c.as
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=" + c.dir, "TMPDIR=" + c.dir}
	return cmd
}

// lastLog returns the end of the server's log in one line.
func (c *Cluster) lastLog() string {
	text, _ := os.ReadFile(c.LogFile())
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], " | ")
}

// freePort returns a port below those that the system gives to outgoing connections, so that it is
// still free for a restart.
func freePort() (int, error) {
	for range 100 {
		port := 20000 + rand.N(12000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no free port on 127.0.0.1")
}
