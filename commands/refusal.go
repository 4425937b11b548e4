package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// PostgreSQL's codes for what a person can do something about.
const (
	wrongPassword       = "28P01"
	notAuthorized       = "28000"
	noDatabase          = "3D000"
	tooManyConnections  = "53300"
	notAllowed          = "42501"
	readOnlyTransaction = "25006"
	notSupported        = "0A000"
	protocolViolation   = "08P01" // PgBouncer's for all that it has to say
)

// unreachable reports whether err means that PostgreSQL cannot be reached or refuses us, as
// opposed to a statement that went wrong.
func unreachable(err error) bool {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch {
		case strings.HasPrefix(pg.Code, "08"), strings.HasPrefix(pg.Code, "28"), strings.HasPrefix(pg.Code, "57P"):
			return true
		case slices.Contains([]string{noDatabase, tooManyConnections, notAllowed, readOnlyTransaction}, pg.Code), onStandby(pg):
			return true
		}
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	if _, isFile := errors.AsType[*fs.PathError](err); isFile { // whose cause looks like a network's
		return false
	}
	_, isNet := errors.AsType[net.Error](err)
	return isNet || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || pgconn.SafeToRetry(err)
}

// onStandby reports whether a server in recovery refused to begin a transaction that may write. Its
// code stands for much else, and its words depend on the language.
func onStandby(pg *pgconn.PgError) bool {
	return pg.Code == readOnlyTransaction || pg.Code == notSupported && pg.Routine == "call_bool_check_hook"
}

// explainPostgres puts an error of PostgreSQL or of the way to it into one line without secrets,
// with what to do about it where that is known. The server's DETAIL, which can hold a row's values,
// is left out.
func explainPostgres(err error) error {
	if connect, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return explainConnect(connect)
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if ok && onStandby(pg) {
		return fmt.Errorf("%w; %s", err, wantPrimary)
	}
	return err
}

const wantPrimary = "give the primary's address, or those of all servers: host1:5432,host2:5432"

// explainConnect says what each server answered: one, as a rule.
func explainConnect(err *pgconn.ConnectError) error {
	answers := serverAnswers(err)
	c := err.Config
	if len(answers) > 1 {
		var all []string
		for _, a := range answers {
			all = append(all, a.address+" "+a.says)
		}
		return fmt.Errorf("none of the servers with database %q can be used: %s", c.Database, strings.Join(all, ", "))
	}
	text := address(c) + " " + answers[0].says
	if answers[0].advice != "" {
		text += "; " + answers[0].advice
	}
	return errors.New(text)
}

// answer is what became of connecting to one server.
type answer struct{ address, says, advice string }

// serverAnswers returns one answer per address. Of a server that was asked with TLS and without, its
// own words count, and else what came last: what came first was not the end of it.
func serverAnswers(connect *pgconn.ConnectError) (all []answer) {
	for _, err := range joined(connect.Unwrap()) {
		a := newAnswer(err)
		i := slices.IndexFunc(all, func(other answer) bool { return other.address == a.address })
		switch {
		case i < 0:
			all = append(all, a)
		case !strings.HasPrefix(all[i].says, refuses):
			all[i] = a
		}
	}
	return all
}

// refuses begins what a server says itself.
const refuses = "refuses: "

// joined returns the errors that were joined, at whatever depth.
func joined(err error) []error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if j, ok := e.(interface{ Unwrap() []error }); ok {
			return j.Unwrap()
		}
	}
	return []error{err}
}

// newAnswer puts an error of one attempt into words. Its text begins with the address.
func newAnswer(err error) answer {
	where, _, _ := strings.Cut(err.Error(), " (")
	pg, isServer := errors.AsType[*pgconn.PgError](err)
	dns, isName := errors.AsType[*net.DNSError](err)
	switch {
	case isName:
		return answer{dns.Name, "cannot be reached: " + dns.Err, ""}
	case isServer:
		return answer{where, refuses + pg.Message, connectAdvice(pg)}
	case errors.Is(err, pgconn.ErrStandbyConnection):
		return answer{where, "is a standby, on which nothing can be written", wantPrimary}
	case errors.Is(err, pgconn.ErrReadOnlyConnection), errors.Is(err, pgconn.ErrReadWriteConnection), errors.Is(err, pgconn.ErrPrimaryConnection):
		return answer{where, "is not what target_session_attrs asks for: " + rootCause(err), ""}
	}
	return answer{where, "cannot be reached: " + rootCause(err), wayAdvice(err)}
}

// connectAdvice is what to do about a server's refusal, "" when its words say it all.
func connectAdvice(pg *pgconn.PgError) string {
	switch pg.Code {
	case wrongPassword:
		return "check the user and the password"
	case noDatabase:
		return "create it, or correct its name in the database URL"
	case tooManyConnections:
		return "raise max_connections, lower pool_max_conns, or put a pooler in between"
	case notAllowed:
		return "grant connect on the database to the role"
	case protocolViolation:
		if name, ok := strings.CutPrefix(pg.Message, "unsupported startup parameter: "); ok {
			return fmt.Sprintf("take %s out of the database URL, or name it in PgBouncer's ignore_startup_parameters", name)
		}
	case notAuthorized:
		if strings.Contains(pg.Message, "pg_hba.conf") { // in every language
			return "the server's pg_hba.conf says who may connect and whether with TLS, sslmode whether we do"
		}
	}
	return ""
}

// wayAdvice is what to do about a way that leads nowhere.
func wayAdvice(err error) string {
	switch text := err.Error(); {
	case strings.Contains(text, "server refused TLS"):
		return "it has no TLS: sslmode=disable does without"
	case strings.Contains(text, "x509:"):
		return "sslrootcert names the authorities to trust"
	}
	return ""
}

// address names a server and database as a person would.
func address(c *pgconn.Config) string {
	host := c.Host
	if !strings.HasPrefix(host, "/") { // a socket's folder
		host = net.JoinHostPort(host, fmt.Sprint(c.Port))
	}
	if c.Database == "" {
		return "PostgreSQL at " + host
	}
	return fmt.Sprintf("PostgreSQL at %s, database %q,", host, c.Database)
}

// rootCause is the innermost error's text: the chain around it repeats the address.
func rootCause(err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "it does not answer"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return "it closes the connection"
	}
	for errors.Unwrap(err) != nil {
		err = errors.Unwrap(err)
	}
	return err.Error()
}
