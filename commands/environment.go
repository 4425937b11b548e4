package commands

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// noTwin names the flags that select or consent: an environment variable left over from
// yesterday must not choose events or agree to anything.
var noTwin = map[string]bool{
	"help": true, "all": true, "yes": true, "id": true, "key": true, "status": true, "older-than": true,
	"event-type": true, "exclude-event-type": true, "tenant": true, "aggregate": true,
	"destination": true, "since": true, "until": true, "error-kind": true, "error-code": true,
	"dry-run": true, "reason": true, "database-url": true, "direct-database-url": true,
}

// noTwinMark is the annotation of a flag that selects or consents and shares its name with one that
// does not.
const noTwinMark = "no environment twin"

// aliases are further names in the environment, accepted after OUTBOXCTL_….
var aliases = map[string]string{
	"to":              "WEBHOOK_URL",
	"batch-size":      "BATCH_SIZE",
	"max-attempts":    "MAX_ATTEMPTS",
	"poll-interval":   "POLL_INTERVAL",
	"request-timeout": "REQUEST_TIMEOUT",
	"parallel":        "PARALLEL_SENDS",
}

// fillFromEnvironment sets every flag that the command line did not set and the environment does.
func fillFromEnvironment(fs *pflag.FlagSet, getenv func(string) string) error {
	var bad error
	fs.VisitAll(func(f *pflag.Flag) {
		_, marked := f.Annotations[noTwinMark]
		if f.Changed || noTwin[f.Name] || marked || bad != nil {
			return
		}
		for _, name := range []string{twin(f.Name), aliases[f.Name]} {
			if name == "" || getenv(name) == "" {
				continue
			}
			if err := fs.Set(f.Name, getenv(name)); err != nil {
				bad = usage(fmt.Errorf("%s: %w", name, wrongValue(f, getenv(name), errors.Unwrap(err))), "")
			}
			return
		}
	})
	return bad
}

// twin is the name of a flag in the environment.
func twin(flag string) string {
	return "OUTBOXCTL_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// findDatabases fills the database URLs by precedence. A flag that is given counts, even when it is
// empty: then libpq's PG* variables say where the database is.
func (a *app) findDatabases(fs *pflag.FlagSet) {
	find := func(d *dsn, flag string, names ...string) {
		d.from = "the PG* variables"
		if fs.Changed(flag) {
			d.from = "--" + flag
			return
		}
		for _, name := range names {
			if v := a.Getenv(name); v != "" {
				d.text, d.from = v, name
				return
			}
		}
	}
	find(&a.global.database, "database-url", "OUTBOXCTL_DATABASE_URL", "DATABASE_URL", "DB_URL")
	find(&a.global.direct, "direct-database-url", "OUTBOXCTL_DIRECT_DATABASE_URL")
}

// inEnvironment is where a database URL is out of others' sight.
var inEnvironment = map[string]string{
	"--database-url": "DATABASE_URL", "--direct-database-url": "OUTBOXCTL_DIRECT_DATABASE_URL",
}
