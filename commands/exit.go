package commands

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outboxctl/outboxctl/migrate"
	"github.com/outboxctl/outboxctl/outbox"
)

// The exit codes; `stats --check` alone speaks Nagios instead.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitAttention   = 3 // finished, but some events failed or died, or work remains
	exitUnreachable = 4 // PostgreSQL cannot be reached or refuses us
	exitSchema      = 5 // the schema is missing, older or newer than this binary
	exitDeclined    = 6
)

const exitCodes = `
Exit codes: 0 done; 1 runtime error; 2 usage or configuration error; 3 finished,
but events failed or work remains; 4 PostgreSQL cannot be reached or refuses us;
5 the schema is missing, older or newer than this binary; 6 declined, or --yes
needed; 130, 143 stopped by a second SIGINT or SIGTERM.`

// failure is an error that knows the code to exit with and what to do next.
type failure struct {
	code int
	err  error  // nil exits without a word
	hint string // what to run or change; "" for none
}

func (f *failure) Error() string {
	if f.err == nil {
		return fmt.Sprintf("exit %d", f.code)
	}
	return f.err.Error()
}

func (f *failure) Unwrap() error { return f.err }

// usage is a mistake in the command line or the configuration.
func usage(err error, hint string) error { return &failure{exitUsage, err, hint} }

// quietly ends a command whose output has said everything.
func quietly(code int) error { return &failure{code: code} }

// stopped is the cause of a context that a signal ended.
type stopped struct{ signal os.Signal }

func (s stopped) Error() string { return "stopped by " + s.signal.String() }

// code is the shell's convention: 128 and the signal's number.
func (s stopped) code() int {
	if n, ok := s.signal.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return exitError
}

func isHangup(s os.Signal) bool { return s == syscall.SIGHUP }

// exitCode says on stderr what went wrong, in one line and at most one hint, and returns the code.
func (a *app) exitCode(stop context.Context, err error) int {
	if err == nil {
		return exitOK
	}
	if s, ok := errors.AsType[stopped](context.Cause(a.kill)); ok {
		return s.code()
	}
	if s, ok := errors.AsType[stopped](context.Cause(stop)); ok && errors.Is(err, context.Canceled) {
		return s.code()
	}
	if noReader(err) { // nor would anybody read about it
		return exitError
	}
	f := a.classify(err)
	if f.err != nil && a.judging() {
		return a.unknown(f)
	}
	if f.err != nil {
		fmt.Fprintf(a.Err, "outboxctl: %s\n", oneLine(a.inConfigFile(f).Error()))
	}
	if f.hint != "" {
		fmt.Fprintf(a.Err, "  %s\n", f.hint)
	}
	return f.code
}

// classify finds the code and the hint for an error that does not carry them.
func (a *app) classify(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	switch {
	case errors.Is(err, migrate.ErrMissing), errors.Is(err, migrate.ErrOlder):
		return &failure{exitSchema, err, "run: outboxctl migrate" + a.schemaFlag()}
	case errors.Is(err, outbox.ErrNoHold):
		return &failure{exitSchema, err, "run: outboxctl migrate --with hold" + a.schemaFlag()}
	case errors.Is(err, migrate.ErrNewer):
		return &failure{exitSchema, err, "use an outboxctl that knows this schema"}
	case denied(err):
		return &failure{exitUnreachable, explainPostgres(err), "each command's role: outboxctl migrate grants --help"}
	case unreachable(err):
		return &failure{exitUnreachable, explainPostgres(err), ""}
	}
	return &failure{exitError, explainPostgres(err), ""}
}

// denied reports whether our role lacks a privilege on the outbox.
func denied(err error) bool {
	const insufficientPrivilege = "42501"
	pg, ok := errors.AsType[*pgconn.PgError](err)
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	return ok && !connecting && pg.Code == insufficientPrivilege
}

// schemaFlag is what a command to run next needs to find the same schema, for a shell: the
// configuration, too, where the environment does not name it.
func (a *app) schemaFlag() (flags string) {
	if a.global.config != "" && a.global.config != a.Getenv(twin("config")) {
		flags = " --config " + shellWord(a.global.config)
	}
	if a.global.schema != "public" {
		flags += " --schema " + shellWord(a.global.schema)
	}
	return flags
}
