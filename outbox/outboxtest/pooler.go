package outboxtest

import (
	"errors"
	"fmt"
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

	"github.com/jackc/pgx/v5/pgconn"
)

// errNoPooler is the one line for a machine without PgBouncer.
var errNoPooler = errors.New("no pgbouncer found: install it (apt-get install pgbouncer, dnf install pgbouncer, brew install pgbouncer)")

// Pooler is a PgBouncer in transaction mode with two connections to a server. It ends with this
// process, however that ends.
type Pooler struct {
	dir   string
	port  int
	as    *syscall.SysProcAttr
	guard *watchdog
	cmd   *exec.Cmd // nil = not running
	close sync.Once
}

// livePoolers holds those that are not closed, for the reason that alive has.
var livePoolers sync.Map

// StartPooler starts a pooler in front of the server of a database URL, to which it connects as the
// URL's user whoever comes. Settings are lines for its section [pgbouncer].
func StartPooler(upstream string, settings ...string) (*Pooler, error) {
	server, err := pgconn.ParseConfig(upstream)
	if err != nil {
		return nil, err
	}
	as, owner, err := unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "outboxctl-pooler-")
	if err != nil {
		return nil, err
	}
	p := &Pooler{dir: dir, as: as}
	if p.guard, err = watch(dir); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	livePoolers.Store(p, nil)
	if owner != nil {
		err = os.Chown(dir, *owner, -1)
	}
	for range 5 { // a port that was free may be taken by the time it is bound
		if err == nil {
			err = p.start(server, settings)
		}
		if err == nil || errors.Is(err, errNoPooler) {
			break
		}
	}
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// start returns when the pooler takes connections.
func (p *Pooler) start(server *pgconn.Config, settings []string) (err error) {
	binary, err := poolerBinary()
	if err != nil {
		return err
	}
	if p.port, err = freePort(); err != nil {
		return err
	}
	file := filepath.Join(p.dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(p.configuration(server, settings)), 0o644); err != nil {
		return err
	}
	log, err := os.OpenFile(p.LogFile(), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(binary, file)
	cmd.Dir, cmd.SysProcAttr, cmd.Stderr = p.dir, p.as, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start pgbouncer: %w", err)
	}
	p.cmd = cmd
	p.guard.started(cmd.Process.Pid)
	return p.ready()
}

func (p *Pooler) configuration(server *pgconn.Config, settings []string) string {
	database := fmt.Sprintf("* = host=%s port=%d user=%s", server.Host, server.Port, server.User)
	if server.Password != "" {
		database += " password='" + strings.ReplaceAll(server.Password, "'", "''") + "'"
	}
	return strings.Join(append([]string{
		"[databases]",
		database,
		"[pgbouncer]",
		"listen_addr = 127.0.0.1",
		"listen_port = " + strconv.Itoa(p.port),
		"unix_socket_dir =",
		"auth_type = any",
		"pool_mode = transaction",
		"default_pool_size = 2",
	}, settings...), "\n") + "\n"
}

// ready waits until it listens. Its own log says so: on a port lost to someone else, someone else
// would answer.
func (p *Pooler) ready() error {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		text, _ := os.ReadFile(p.LogFile())
		switch {
		case strings.Contains(string(text), "process up"):
			return nil
		case strings.Contains(string(text), "FATAL"), strings.Contains(string(text), "ERROR"):
			return errors.Join(fmt.Errorf("pgbouncer: %s", strings.TrimSpace(string(text))), p.end())
		}
	}
	return errors.Join(fmt.Errorf("pgbouncer not ready after %s", patience), p.end())
}

// URL returns the URL of one of the server's databases through the pooler.
func (p *Pooler) URL(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.User("anyone"), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)),
		Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// LogFile returns the path of the pooler's log.
func (p *Pooler) LogFile() string { return filepath.Join(p.dir, "pgbouncer.log") }

// Close stops the pooler and removes its files. It need not be called: the process's end does it.
func (p *Pooler) Close() error {
	var err error
	p.close.Do(func() {
		err = errors.Join(p.end(), p.guard.dismiss())
		livePoolers.Delete(p)
	})
	return err
}

func (p *Pooler) end() error {
	if p.cmd == nil {
		return nil
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	p.cmd.Wait() // killed
	p.guard.ended()
	p.cmd = nil
	return nil
}

// poolerBinary looks where administrators' programs are, too.
func poolerBinary() (string, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer", "/usr/local/sbin/pgbouncer", "/opt/homebrew/bin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errNoPooler
}
