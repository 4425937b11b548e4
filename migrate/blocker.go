package migrate

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// glance is the time between two looks at who is in the way; most migrations are done before the
// first.
const glance = 250 * time.Millisecond

// Blocker is a session that holds what a migration needs.
type Blocker struct {
	PID  int    // 0 = a prepared transaction, which has no session
	Name string // application_name; "" = it has none. Its query is nobody's business.
}

// String names the session so that a person finds it.
func (b Blocker) String() string {
	switch {
	case b.PID == 0:
		return "a prepared transaction"
	case b.Name == "":
		return fmt.Sprintf("pid %d", b.PID)
	}
	return fmt.Sprintf("pid %d (%s)", b.PID, b.Name)
}

func sentence(blockers []Blocker) string {
	names := make([]string, len(blockers))
	for i, b := range blockers {
		names[i] = b.String()
	}
	return strings.Join(names, ", ")
}

// watched runs something that may have to wait for others' locks, and tells who is in the way of
// what. run sends the process id of its backend as soon as it knows it.
func (w *work) watched(ctx context.Context, what string, run func(ctx context.Context, pid chan<- int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pids, ended := make(chan int, 1), make(chan error, 1)
	go func() { ended <- run(ctx, pids) }()
	out := lookout{schema: w.Schema}
	defer out.close(ctx)
	tick := time.NewTicker(glance)
	defer tick.Stop()
	var pid int
	for {
		select {
		case err := <-ended:
			return err
		case pid = <-pids:
		case <-tick.C:
			if err := w.waits(what, out.blockers(ctx, pid)); err != nil {
				cancel()
				<-ended
				return err
			}
		}
	}
}

// lookout is a second connection, made when it is first needed.
type lookout struct {
	schema *Schema
	conn   *pgx.Conn
}

const blockersSQL = `
select distinct b.pid, coalesce(a.application_name, '')
  from pg_catalog.unnest(pg_catalog.pg_blocking_pids($1)) b(pid)
  left join pg_catalog.pg_stat_activity a on a.pid = b.pid
 order by 1`

// blockers returns who is in the way of a backend. It is a courtesy: where it fails, the work goes on.
func (l *lookout) blockers(ctx context.Context, pid int) []Blocker {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if pid == 0 {
		return nil
	}
	if l.conn == nil || l.conn.IsClosed() {
		conn, err := l.schema.dial(ctx)
		if err != nil {
			return nil
		}
		l.conn = conn
	}
	rows, err := l.conn.Query(ctx, blockersSQL, pid)
	if err != nil {
		return nil
	}
	all, _ := pgx.CollectRows(rows, pgx.RowToStructByPos[Blocker])
	return all
}

func (l *lookout) close(ctx context.Context) {
	if l.conn != nil {
		l.conn.Close(context.WithoutCancel(ctx))
	}
}

// dial makes a connection of our own to the schema's database.
func (s *Schema) dial(ctx context.Context) (*pgx.Conn, error) {
	switch db := s.db.(type) {
	case *pgxpool.Pool:
		return pgx.ConnectConfig(ctx, db.Config().ConnConfig)
	case *pgx.Conn:
		return pgx.ConnectConfig(ctx, db.Config())
	default:
		return nil, fmt.Errorf("a %T cannot be asked for another connection", db)
	}
}
