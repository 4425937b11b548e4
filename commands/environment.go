package commands

import (
	"cmp"
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
	"include-delivered": true, "move-to": true, "canary": true, "dry-run": true, "reason": true,
}

// noTwinMark is the annotation of a flag that selects or consents and shares its name with one that
// does not.
const noTwinMark = "no environment twin"

// typed marks flags that select or consent, or that share their name with another command's setting:
// an environment variable must not set them. They are there.
func typed(fs *pflag.FlagSet, names ...string) {
	for _, name := range names {
		_ = fs.SetAnnotation(name, noTwinMark, nil)
	}
}

// aliases are further names in the environment, accepted after OUTBOXCTL_….
var aliases = map[string][]string{
	"database-url":    {"DATABASE_URL", "DB_URL"},
	"to":              {"WEBHOOK_URL"},
	"batch-size":      {"BATCH_SIZE"},
	"max-attempts":    {"MAX_ATTEMPTS"},
	"poll-interval":   {"POLL_INTERVAL"},
	"request-timeout": {"REQUEST_TIMEOUT"},
	"parallel":        {"PARALLEL_SENDS"},
}

// selects reports whether a flag chooses events or consents: such flags are typed.
func selects(f *pflag.Flag) bool {
	_, marked := f.Annotations[noTwinMark]
	return marked || noTwin[f.Name]
}

// originMark is the annotation of a flag that somebody has set: where.
const originMark = "where it is set"

func setOrigin(f *pflag.Flag, origin string) {
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[originMark] = []string{origin}
}

// originOf is where a flag was set: as a flag, a variable or a line of a file; "" when nowhere.
func originOf(f *pflag.Flag) string {
	if marks := f.Annotations[originMark]; len(marks) > 0 {
		return marks[0]
	}
	if f.Changed {
		return "--" + f.Name
	}
	return ""
}

// fillFromEnvironment sets every flag that the command line did not set and the environment does.
func fillFromEnvironment(fs *pflag.FlagSet, getenv func(string) string) error {
	var bad error
	fs.VisitAll(func(f *pflag.Flag) {
		if bad == nil {
			bad = fillFlag(fs, f, getenv)
		}
	})
	return bad
}

func fillFlag(fs *pflag.FlagSet, f *pflag.Flag, getenv func(string) string) error {
	name := variableOf(f, getenv)
	if f.Changed || name == "" || f.Annotations[leftMark] != nil {
		return nil
	}
	if err := fs.Set(f.Name, getenv(name)); err != nil {
		return usage(fmt.Errorf("%s: %w", name, wrongValue(f, getenv(name), errors.Unwrap(err))), "")
	}
	setOrigin(f, name)
	return nil
}

// variableOf is the variable that sets a flag; "" when none does.
func variableOf(f *pflag.Flag, getenv func(string) string) string {
	if selects(f) {
		return ""
	}
	for _, name := range append([]string{twin(f.Name)}, aliases[f.Name]...) {
		if getenv(name) != "" {
			return name
		}
	}
	return ""
}

// leftMark is the annotation of a flag that is not to be set at all.
const leftMark = "left to the configuration file"

// secretVariables hold the signing secrets of a destination without a file.
var secretVariables = []string{"OUTBOXCTL_SECRET", "HMAC_SECRET", "OUTBOXCTL_SECRET_OLD"}

// leaveToFile refuses flags of a destination beside a file that has destinations, and passes over
// their variables, with one warning: several destinations cannot have one of each.
func (a *app) leaveToFile(fs *pflag.FlagSet) error {
	if a.file == nil || a.file.destinationsNode == nil {
		return nil
	}
	var typed string
	var ignored []string
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Annotations[destinationMark] == nil {
			return
		}
		if f.Changed {
			typed = f.Name
		}
		f.Annotations[leftMark] = []string{"true"}
		if name := variableOf(f, a.Getenv); name != "" && !a.file.asked[name] {
			ignored = append(ignored, name)
		}
	})
	if typed != "" {
		return usage(fmt.Errorf("--%s belongs to one destination, and %s has its own: set %s there", typed, a.file.path, keyOf(typed)), "")
	}
	if to := fs.Lookup("to"); to != nil && to.Annotations[destinationMark] != nil {
		for _, name := range secretVariables {
			if a.Getenv(name) != "" && !a.file.asked[name] {
				ignored = append(ignored, name)
			}
		}
	}
	if len(ignored) > 0 {
		a.warnOnce("ignored, since %s says it for each destination: %s", a.file.path, strings.Join(ignored, ", "))
	}
	return nil
}

// twin is the name of a flag in the environment.
func twin(flag string) string {
	return "OUTBOXCTL_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// placeDatabases says where the database URLs are from. A flag that is given counts, even when it is
// empty: then libpq's PG* variables say where the database is.
func (a *app) placeDatabases(fs *pflag.FlagSet) {
	a.global.database.from = cmp.Or(originOf(fs.Lookup("database-url")), "the PG* variables")
	a.global.direct.from = originOf(fs.Lookup("direct-database-url"))
}

// inEnvironment is where a database URL is out of others' sight.
var inEnvironment = map[string]string{
	"--database-url": "DATABASE_URL", "--direct-database-url": "OUTBOXCTL_DIRECT_DATABASE_URL",
}

// secretFlags names the flags whose values are not shown.
var secretFlags = map[string]bool{"database-url": true, "direct-database-url": true}
