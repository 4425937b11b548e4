package commands

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
)

// dispatchOptions are the flags of dispatch: those of the one destination that --to names, and those
// of the run.
type dispatchOptions struct {
	destination
	names []string // of destinations in the file to serve; nil = all

	pollInterval durationValue
	wake         string
	grace        durationValue

	once        bool
	wait        durationValue
	maxDuration durationValue
	maxEvents   int
	dryRun      bool

	only outbox.Selection
}

// The ways to learn of news. Polling goes on beneath each.
const (
	wakePoll   = "poll"
	wakeListen = "listen"
	wakeWAL    = "wal"
)

func newDispatch(a *app) *cobra.Command {
	var o dispatchOptions
	cmd := &cobra.Command{
		Use:   "dispatch",
		Short: "deliver due events",
		Long: `Deliver due events to a destination, oldest first, until stopped; with --once, until
none is due (for cron). Any number of dispatchers can work on one outbox.

An event is delivered at least once. A failed attempt is made again after the backoff,
up to --max-attempts; then the event is failed. An answer that no retry will mend makes
it a dead letter. With --ordering aggregate the events of one aggregate are sent one
after the other, in order, and one that fails holds those behind it.

The first SIGINT or SIGTERM stops claiming, gives unsent events back
and leaves those being sent --grace to end; the second stops at once.

With --config, events go to the destinations of the file, each with settings and a loop
of its own; --destination chooses some of them. SIGHUP reads the file again: destinations
that changed begin anew, the others go on, and a file with mistakes changes nothing.

With --to, requests are signed with OUTBOXCTL_SECRET (or HMAC_SECRET), and while a secret is being
changed also with OUTBOXCTL_SECRET_OLD; or with the lines of --secret-file, the first
of which signs first, and which SIGHUP reads again.

WEBHOOK_URL, BATCH_SIZE, MAX_ATTEMPTS, POLL_INTERVAL, REQUEST_TIMEOUT and
PARALLEL_SENDS are understood too.
` + exitCodes,
		Example: `  outboxctl dispatch --to https://example.com/hooks
  outboxctl dispatch --to https://example.com/hooks --once --max-duration 50s
  outboxctl dispatch --to https://example.com/hooks --ordering aggregate
  outboxctl dispatch --config outboxctl.yaml --destination crm,mail
  outboxctl dispatch --to stdout: --event-type 'order.*' --once --dry-run`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkLists(cmd.Flags(), "destination", "event-type", "exclude-event-type", "tenant"); err != nil {
				return err
			}
			return o.run(cmd.Context(), a)
		},
	}
	cmd.Annotations = map[string]string{wholeFileMark: "true"}
	o.flags(cmd.Flags())
	cmd.AddCommand(newDispatchPause(a), newDispatchResume(a))
	return cmd
}

func (o *dispatchOptions) flags(fs *pflag.FlagSet) {
	o.pollInterval = durationValue(2 * time.Second)
	o.grace = durationValue(20 * time.Second)
	o.wait = durationValue(10 * time.Second)
	o.destination.flags(fs)
	fs.StringSliceVar(&o.names, "destination", nil, "only these `destinations` of the configuration file")
	fs.Var(&o.pollInterval, "poll-interval", "between looks at an outbox with nothing due, at most")
	fs.StringVar(&o.wake, "wake", wakePoll, "`how` to learn of news: poll, listen (needs migrate --with notify) or wal (--with wal)")
	fs.Var(&o.grace, "grace", "for deliveries being sent when stopped")

	fs.BoolVar(&o.once, "once", false, "end when nothing is due")
	fs.Var(&o.wait, "wait", "with --once: wait for this run's retries that are due within it")
	fs.Var(&o.maxDuration, "max-duration", "stop after this long")
	fs.IntVar(&o.maxEvents, "max-events", 0, "end after sending this `number` of events")
	fs.BoolVar(&o.dryRun, "dry-run", false, "show what is due and send nothing")

	fs.StringSliceVar(&o.only.EventTypes, "event-type", nil, "only these `types`; * stands for any text")
	fs.StringSliceVar(&o.only.ExcludeEventTypes, "exclude-event-type", nil, "not these `types`; * stands for any text")
	fs.StringSliceVar(&o.only.Tenants, "tenant", nil, "only these `tenants`")
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "topic" { // others call an event's type so
			name = "event-type"
		}
		return pflag.NormalizedName(name)
	})
}

// check refuses settings that make no sense, by name.
func (o *dispatchOptions) check() error {
	return refuse([]rule{
		{"poll-interval", o.pollInterval <= 0, "must be longer than 0"},
		{"wake", !slices.Contains([]string{wakePoll, wakeListen, wakeWAL}, o.wake), fmt.Sprintf("%q: want poll, listen or wal", o.wake)},
		{"max-events", o.maxEvents < 0, "must not be negative"},
	})
}

// checkLists refuses an empty value among those of the flags: a variable of a script that was not set
// must not select everything.
func checkLists(fs *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		f := fs.Lookup(name)
		if list, ok := f.Value.(pflag.SliceValue); ok && f.Changed && (len(list.GetSlice()) == 0 || slices.Contains(list.GetSlice(), "")) {
			return usage(fmt.Errorf("--%s has an empty value: leave the flag out to select all", name), "")
		}
	}
	return nil
}

func (o *dispatchOptions) run(ctx context.Context, a *app) error {
	if err := o.check(); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	run := &dispatchRun{app: a, o: o, stdout: pipe{a.Out, func() { stop(errNoReader) }}}
	destinations, err := o.destinations(a)
	if err != nil {
		return err
	}
	for _, d := range destinations {
		s, err := run.serve(d)
		if err != nil {
			return err
		}
		defer s.close()
		run.served = append(run.served, s)
	}
	return run.start(ctx)
}

// destinations are those to serve: the one that --to names, or the file's.
func (o *dispatchOptions) destinations(a *app) ([]*destination, error) {
	if a.file != nil && len(a.file.destinations) > 0 {
		return a.file.chosen(o.names)
	}
	if len(o.names) > 0 {
		return nil, usage(errors.New("--destination chooses among those of a configuration file, and there is none with destinations"), "")
	}
	if o.url == "" {
		return nil, usage(errors.New("--to is missing: give the URL to deliver to (or set WEBHOOK_URL), or a file with destinations: --config"), "")
	}
	if err := refuse(o.rules()); err != nil {
		return nil, err
	}
	o.warnPassword(a)
	secrets, err := a.secrets(o.secretFile)
	if err != nil {
		return nil, err
	}
	o.secrets = secrets
	return []*destination{&o.destination}, nil
}

// warnPassword tells who types a password into a command line that others can read it there.
func (o *dispatchOptions) warnPassword(a *app) {
	u, err := url.Parse(o.url)
	typed := slices.ContainsFunc(a.Args, func(arg string) bool { return strings.Contains(arg, o.url) })
	if err != nil || !typed {
		return
	}
	if _, has := u.User.Password(); has {
		fmt.Fprintln(a.Err, "outboxctl: warning: a password in --to is visible in the process list; use WEBHOOK_URL")
	}
}

// flagWords turns a sink's names of settings, which are the file's, into flags.
var flagWords = strings.NewReplacer("url: ", "", "allow_private", "--allow-private", "ca_file", "--ca-file",
	"client_cert_file", "--client-cert-file", "client_key_file", "--client-key-file")

// dispatcher puts the loop of a destination together.
func (o *dispatchOptions) dispatcher(d *destination, source outbox.Source, target outbox.Sink) *outbox.Dispatcher {
	return &outbox.Dispatcher{
		Source:         source,
		Sink:           target,
		Policy:         d.policy(),
		Ordering:       outbox.Ordering(d.ordering),
		OnDead:         outbox.OnDead(d.onDead),
		BatchSize:      d.batchSize,
		Parallel:       min(d.parallel, d.batchSize),
		Lease:          time.Duration(d.lease),
		RequestTimeout: time.Duration(d.requestTimeout),
		PollInterval:   time.Duration(o.pollInterval),
		Grace:          time.Duration(o.grace),
		Once:           o.once,
		Wait:           time.Duration(o.wait),
		MaxEvents:      o.maxEvents,
	}
}

func (o *dispatchOptions) queue(d *destination, db *pgxpool.Pool, a *app) *outbox.Queue {
	return outbox.NewStore(db, a.global.schema).Queue(outbox.QueueOptions{
		Destination:  d.name,
		Worker:       a.worker(),
		Lease:        time.Duration(d.lease),
		MaxAttempts:  d.maxAttempts,
		PollInterval: time.Duration(o.pollInterval),
		Only:         o.only,
		Ordering:     outbox.Ordering(d.ordering),
		OnDead:       outbox.OnDead(d.onDead),
		DeadLetter:   d.deadLetter,
	})
}

// worker is this process's name in leases and logs.
func (a *app) worker() string {
	if a.global.workerID != "" {
		return a.global.workerID
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Sprint("pid-", os.Getpid())
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid())
}

// secrets reads the signing secrets, the one that signs first in front.
func (a *app) secrets(file string) ([]string, error) {
	var fromEnv []string
	first := a.Getenv("OUTBOXCTL_SECRET")
	if first == "" {
		first = a.Getenv("HMAC_SECRET")
	}
	for _, s := range []string{first, a.Getenv("OUTBOXCTL_SECRET_OLD")} {
		if s != "" {
			fromEnv = append(fromEnv, s)
		}
	}
	if file == "" {
		return fromEnv, nil
	}
	if len(fromEnv) > 0 {
		return nil, usage(errors.New("--secret-file and a secret in the environment are both set: choose one"), "")
	}
	secrets, err := readSecrets(file)
	if err != nil {
		return nil, usage(fmt.Errorf("--secret-file: %w", err), "")
	}
	return secrets, nil
}
