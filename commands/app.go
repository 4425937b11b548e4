// Package commands is outboxctl's command line and its composition root: cobra, flags,
// configuration and words for people live here and nowhere else. One file per command.
package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// Process is what the operating system gives a program: everything a command may touch of it.
type Process struct {
	Args    []string
	In      io.Reader
	Out     io.Writer // results
	Err     io.Writer // everything else
	Getenv  func(string) string
	Signals <-chan os.Signal // SIGINT, SIGTERM: stop; again: stop now; SIGHUP: read secrets and destinations again
	Build   Build
}

// Build says which outboxctl this is.
type Build struct{ Version, Commit, Date string }

// Main runs one command line and returns its exit code; see exit.go for what the codes mean.
func Main(p Process) int {
	a := &app{Process: p, warned: new(sync.Map)}
	stop, cancel := a.watchSignals()
	defer cancel()
	root := newRoot(a)
	root.SetArgs(p.Args)
	root.SetIn(p.In)
	root.SetOut(p.Out)
	root.SetErr(p.Err)
	return a.exitCode(stop, root.ExecuteContext(stop))
}

// app is what every command shares: the process, the global flags and the two stop contexts.
type app struct {
	Process
	global globalOptions
	cmd    *cobra.Command  // the one that runs
	file   *configFile     // nil without --config
	loops  int             // that are to share the connections
	warned *sync.Map       // what was said to matter
	kill   context.Context // done at the second signal; a command that drains stops at once then
	hangup chan struct{}   // SIGHUP
}

// globalOptions are the flags that every command understands.
type globalOptions struct {
	config     string
	database   dsn
	direct     dsn // past a pooler; without a text there is none, or no need
	schema     string
	output     string
	logFormat  string
	logLevel   string
	color      string
	noProgress bool
	yes        bool
	workerID   string
}

func (o *globalOptions) flags(fs *pflag.FlagSet) {
	fs.StringVar(&o.config, "config", "", "YAML `file` with settings, named as the flags are, with _ for -")
	fs.StringVar(&o.database.text, "database-url", "", "PostgreSQL `URL` (better in DATABASE_URL: a flag is visible to others)")
	fs.StringVar(&o.direct.text, "direct-database-url", "", "the same past a pooler, as a `URL`, for what needs a session: migrate, dispatch --wake")
	fs.StringVar(&o.schema, "schema", "public", "`schema` of the outbox, as its raw name")
	fs.StringVarP(&o.output, "output", "o", "table", "`format` of results: table, json, and for lists jsonl or csv")
	fs.StringVar(&o.logFormat, "log-format", "text", "`format` of log lines: text or json")
	fs.StringVar(&o.logLevel, "log-level", "info", "least `level` to log: debug, info, warn or error")
	fs.StringVar(&o.color, "color", "auto", "`when` to use colours: auto, always or never")
	fs.BoolVar(&o.noProgress, "no-progress", false, "no progress bars")
	fs.BoolVar(&o.yes, "yes", false, "answer yes to every question")
	fs.StringVar(&o.workerID, "worker-id", "", "`name` of this worker in logs and leases (default: the host's name and the process id)")
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "outboxctl",
		Short: "run a transactional outbox on PostgreSQL",
		Long: `outboxctl runs a transactional outbox on PostgreSQL: it creates the table, delivers
the events that your transactions commit to it, and helps on the day when a
receiver is down.

Every flag --some-flag can be given as OUTBOXCTL_SOME_FLAG, but for those that
select events or agree to something, which an environment must not; and as some_flag
in the file that --config names. A flag counts before the environment, and that before
the file. The database comes from --database-url, OUTBOXCTL_DATABASE_URL, DATABASE_URL,
DB_URL, the file, or libpq's PG* variables, in this order.`,
		Example: `  export DATABASE_URL=postgres://app@localhost/app
  outboxctl migrate
  outboxctl dispatch --to https://example.com/hooks
  outboxctl stats`,
		Args:          noArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return a.prepare(cmd)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage(flagTrouble(err), helpHint(cmd))
	})
	a.global.flags(root.PersistentFlags())
	root.AddCommand(
		newBackfill(a),
		newMigrate(a),
		newDispatch(a),
		newStats(a),
		newEvents(a),
		newReplay(a),
		newPurge(a),
		newConfig(a),
		newVersion(a),
	)
	addCobrasOwn(root)
	return root
}

// addCobrasOwn adds cobra's own commands, which speak as ours do.
func addCobrasOwn(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "help":
			cmd.Short = "show the help of a command"
		case "completion":
			cmd.Short = "print a script that completes command lines in a shell"
			cmd.Args, cmd.RunE = noArgs, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
}

// noArgs refuses arguments, most of which are mistyped commands.
func noArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.HasAvailableSubCommands():
		return usage(fmt.Errorf("there is no command %q", cmd.CommandPath()+" "+args[0]), helpHint(cmd))
	}
	return usage(fmt.Errorf("%s takes no arguments, and there is %q", cmd.CommandPath(), args[0]), helpHint(cmd))
}

func helpHint(cmd *cobra.Command) string { return "run: " + cmd.CommandPath() + " --help" }

// flagTrouble says what a flag wants instead of how its value was read.
func flagTrouble(err error) error {
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	return fmt.Errorf("--%s: %w", bad.GetFlag().Name, wrongValue(bad.GetFlag(), bad.GetValue(), bad.Unwrap()))
}

// wrongValue says what a flag of f's type wants.
func wrongValue(f *pflag.Flag, value string, err error) error {
	switch f.Value.Type() {
	case "int", "intSlice", "int64Slice":
		if errors.Is(err, strconv.ErrRange) {
			return fmt.Errorf("%q is too large", value)
		}
		return fmt.Errorf("%q is not a whole number", value)
	case "float64":
		return fmt.Errorf("%q is not a number", value)
	case "bool":
		return fmt.Errorf("%q is neither true nor false", value)
	}
	return err
}

// prepare fills the flags from the environment and the configuration file and checks what all
// commands share.
func (a *app) prepare(cmd *cobra.Command) error {
	a.cmd = cmd
	fs := cmd.Flags()
	if err := fillFlag(fs, fs.Lookup("config"), a.Getenv); err != nil {
		return err
	}
	if err := a.loadConfig(originOf(fs.Lookup("config")), cmd.Annotations[wholeFileMark] != ""); err != nil {
		return err
	}
	if err := a.leaveToFile(fs); err != nil {
		return err
	}
	if err := fillFromEnvironment(fs, a.Getenv); err != nil {
		return err
	}
	if err := a.file.fill(fs); err != nil {
		return err
	}
	a.placeDatabases(fs)
	if err := checkTexts(cmd); err != nil {
		return err
	}
	if formats := outputsOf(cmd); !slices.Contains(formats, a.global.output) {
		return usage(fmt.Errorf("--output %q: want %s", a.global.output, oneOf(formats)), "")
	}
	return refuse(globalRules(func(name string) string { return fs.Lookup(name).Value.String() }))
}

// checkTexts refuses what PostgreSQL has no text for, in flags however they were set, and in
// arguments. Names of files may be any bytes.
func checkTexts(cmd *cobra.Command) (bad error) {
	for _, arg := range cmd.Flags().Args() {
		if !storable(arg) {
			return usage(fmt.Errorf("%q is not UTF-8, or has a byte 0 in it", arg), "")
		}
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		isFile := f.Name == "config" || f.Name == "spec" || strings.HasSuffix(f.Name, "-file")
		if f.Changed && bad == nil && !isFile && slices.ContainsFunc(values, func(v string) bool { return !storable(v) }) {
			bad = usage(fmt.Errorf("--%s is not UTF-8, or has a byte 0 in it", f.Name), "")
		}
	})
	return bad
}

func storable(text string) bool { return utf8.ValidString(text) && !strings.ContainsRune(text, 0) }

// globalRules says what the global settings must be.
func globalRules(value func(flag string) string) []rule {
	var level slog.Level
	unknownLevel := level.UnmarshalText([]byte(value("log-level"))) != nil
	return []rule{
		{"schema", value("schema") == "", "is empty: give the schema's name"},
		{"log-format", !slices.Contains([]string{"text", "json"}, value("log-format")), fmt.Sprintf("%q: want text or json", value("log-format"))},
		{"color", !slices.Contains([]string{"auto", "always", "never"}, value("color")), fmt.Sprintf("%q: want auto, always or never", value("color"))},
		{"log-level", unknownLevel, fmt.Sprintf("%q: want debug, info, warn or error", value("log-level"))},
	}
}

// rule is what a flag must not be, and the words for it that follow the flag's name.
type rule struct {
	flag string
	bad  bool
	say  string
}

// refuse is the first rule that is broken, as a mistake in the command line.
func refuse(rules []rule) error {
	for _, r := range rules {
		if r.bad {
			return usage(fmt.Errorf("--%s %s", r.flag, r.say), "")
		}
	}
	return nil
}

// warnOnce says something that matters however often it is found.
func (a *app) warnOnce(format string, args ...any) {
	text := oneLine(fmt.Sprintf(format, args...))
	if _, again := a.warned.LoadOrStore(text, nil); again {
		return
	}
	fmt.Fprintln(a.Err, "outboxctl: warning:", text)
}

// watchSignals turns the first SIGINT or SIGTERM into the end of the returned context and the
// second into the end of a.kill, whose cause carries the exit code.
func (a *app) watchSignals() (context.Context, context.CancelFunc) {
	stop, cancelStop := context.WithCancelCause(context.Background())
	kill, cancelKill := context.WithCancelCause(context.Background())
	done := make(chan struct{})
	a.kill, a.hangup = kill, make(chan struct{}, 1)
	go func() {
		for {
			select {
			case <-done:
				return
			case s := <-a.Signals:
				switch {
				case isHangup(s):
					offer(a.hangup)
				case stop.Err() == nil:
					cancelStop(stopped{s})
				default:
					cancelKill(stopped{s})
				}
			}
		}
	}()
	return stop, func() { close(done); cancelStop(nil); cancelKill(nil) }
}

// offer tells a listener, unless it has been told and has not looked yet.
func offer(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// terminal reports whether f is one.
func terminal(f any) bool {
	file, ok := f.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// version is what this binary calls itself.
func (a *app) version() string {
	if v := a.Build.Version; v != "" && v != "dev" {
		return v
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "dev"
}
