package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/sink"
	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

// dispatchOptions are the flags of dispatch.
type dispatchOptions struct {
	to         string
	format     string
	body       string
	secretFile string
	private    bool
	caFile     string
	clientCert string
	clientKey  string

	batchSize      int
	parallel       int
	lease          durationValue
	requestTimeout durationValue
	pollInterval   durationValue
	grace          durationValue
	maxAttempts    int
	backoff        backoffValue
	jitter         float64
	maxPayload     sizeValue

	once        bool
	wait        durationValue
	maxDuration durationValue
	maxEvents   int
	dryRun      bool

	only outbox.Selection
}

func newDispatch(a *app) *cobra.Command {
	var o dispatchOptions
	cmd := &cobra.Command{
		Use:   "dispatch",
		Short: "deliver due events",
		Long: `Deliver due events to a destination, oldest first, until stopped; with --once, until
none is due (for cron). Any number of dispatchers can work on one outbox.

An event is delivered at least once. A failed attempt is made again after the backoff,
up to --max-attempts; then the event is failed. An answer that no retry will mend makes
it a dead letter. The first SIGINT or SIGTERM stops claiming, gives unsent events back
and leaves those being sent --grace to end; the second stops at once.

Requests are signed with OUTBOXCTL_SECRET (or HMAC_SECRET), and while a secret is being
changed also with OUTBOXCTL_SECRET_OLD; or with the lines of --secret-file, the first
of which signs first, and which SIGHUP reads again.

WEBHOOK_URL, BATCH_SIZE, MAX_ATTEMPTS, POLL_INTERVAL, REQUEST_TIMEOUT and
PARALLEL_SENDS are understood too.
` + exitCodes,
		Example: `  outboxctl dispatch --to https://example.com/hooks
  outboxctl dispatch --to https://example.com/hooks --once --max-duration 50s
  outboxctl dispatch --to stdout: --event-type 'order.*' --once --dry-run`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkLists(cmd.Flags(), "event-type", "exclude-event-type", "tenant"); err != nil {
				return err
			}
			return o.run(cmd.Context(), a)
		},
	}
	o.flags(cmd.Flags())
	return cmd
}

func (o *dispatchOptions) flags(fs *pflag.FlagSet) {
	o.lease = durationValue(30 * time.Second)
	o.requestTimeout = durationValue(5 * time.Second)
	o.pollInterval = durationValue(2 * time.Second)
	o.grace = durationValue(20 * time.Second)
	o.wait = durationValue(10 * time.Second)
	policy := outbox.DefaultPolicy()
	o.backoff = backoffValue{policy.Backoff.Base, policy.Backoff.Cap}

	fs.StringVar(&o.to, "to", "", "where events go: an http or https `URL`, file:PATH or stdout:")
	fs.StringVar(&o.format, "format", "envelope", "`form` of a request's body: envelope or payload")
	fs.StringVar(&o.body, "body", "plain", "`form` of the envelope: plain, or with_sent_at to add the time of the attempt")
	fs.StringVar(&o.secretFile, "secret-file", "", "`file` with the signing secrets, one a line")
	fs.BoolVar(&o.private, "allow-private", false, "allow loopback and private addresses")
	fs.StringVar(&o.caFile, "ca-file", "", "PEM `file` with the only authorities to trust")
	fs.StringVar(&o.clientCert, "client-cert-file", "", "PEM `file` with the certificate to show to a receiver that asks for one")
	fs.StringVar(&o.clientKey, "client-key-file", "", "PEM `file` with its key")

	fs.IntVar(&o.batchSize, "batch-size", 100, "`number` of events claimed and not settled, at most")
	fs.IntVar(&o.parallel, "parallel", 10, "`number` of events being sent at once, at most")
	fs.Var(&o.lease, "lease", "how long a claimed event is this worker's")
	fs.Var(&o.requestTimeout, "request-timeout", "of one delivery")
	fs.Var(&o.pollInterval, "poll-interval", "between looks at an outbox with nothing due, at most")
	fs.Var(&o.grace, "grace", "for deliveries being sent when stopped")
	fs.IntVar(&o.maxAttempts, "max-attempts", policy.MaxAttempts, "`number` of failed attempts that make an event failed")
	fs.Var(&o.backoff, "backoff", "wait after the first failed attempt, doubled up to the cap")
	fs.Float64Var(&o.jitter, "jitter", policy.Jitter, "`share` by which a wait varies, 0 to 1")
	fs.Var(&o.maxPayload, "max-payload", "make an event with a larger payload a dead letter, unsent: 64KiB, 1MiB")

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
	rules := []struct {
		bad bool
		say string
	}{
		{o.to == "", "--to is missing: give the URL to deliver to (or set WEBHOOK_URL)"},
		{o.batchSize < 1, "--batch-size must be 1 or more"},
		{o.parallel < 1, "--parallel must be 1 or more"},
		{o.batchSize > 100_000, "--batch-size must be 100000 or less"},
		{o.parallel > 10_000, "--parallel must be 10000 or less"},
		{o.maxAttempts < 1, "--max-attempts must be 1 or more"},
		{o.requestTimeout <= 0, "--request-timeout must be longer than 0"},
		{o.pollInterval <= 0, "--poll-interval must be longer than 0"},
		{o.lease < o.requestTimeout+durationValue(2*time.Second), fmt.Sprintf("--lease %s is too short: want --request-timeout and 2s, %s or more",
			&o.lease, printDuration(time.Duration(o.requestTimeout)+2*time.Second))},
		{o.backoff.base <= 0, "--backoff must begin above 0"},
		{o.backoff.cap < o.backoff.base, "--backoff must not end below its begin"},
		{math.IsNaN(o.jitter) || o.jitter < 0 || o.jitter > 1, "--jitter must be between 0 and 1"},
		{o.maxEvents < 0, "--max-events must not be negative"},
		{o.format != "envelope" && o.format != "payload", fmt.Sprintf("--format %q: want envelope or payload", o.format)},
		{o.body != "plain" && o.body != "with_sent_at", fmt.Sprintf("--body %q: want plain or with_sent_at", o.body)},
	}
	for _, rule := range rules {
		if rule.bad {
			return usage(errors.New(rule.say), "")
		}
	}
	return nil
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
	o.warnPassword(a)
	secrets, err := a.secrets(o.secretFile)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	target, err := o.open(a, secrets, pipe{a.Out, func() { stop(errNoReader) }})
	if err != nil {
		return err
	}
	if c, ok := target.(io.Closer); ok {
		defer c.Close()
	}
	run := &dispatchRun{app: a, o: o, target: target}
	return run.start(ctx)
}

// warnPassword tells who types a password into a command line that others can read it there.
func (o *dispatchOptions) warnPassword(a *app) {
	u, err := url.Parse(o.to)
	typed := slices.ContainsFunc(a.Args, func(arg string) bool { return strings.Contains(arg, o.to) })
	if err != nil || !typed {
		return
	}
	if _, has := u.User.Password(); has {
		fmt.Fprintln(a.Err, "outboxctl: warning: a password in --to is visible in the process list; use WEBHOOK_URL")
	}
}

// open makes the sink that --to names.
func (o *dispatchOptions) open(a *app, secrets []string, stdout io.Writer) (outbox.Sink, error) {
	target, err := sink.Open(o.to, sink.Options{
		Stdout: stdout,
		Webhook: webhook.Config{
			Format:       webhook.Format(o.format),
			Version:      a.version(),
			Secrets:      secrets,
			Timeout:      time.Duration(o.requestTimeout),
			Parallel:     o.parallel,
			BodySentAt:   o.body == "with_sent_at",
			AllowPrivate: o.private,
			CAFile:       o.caFile,

			ClientCertFile: o.clientCert,
			ClientKeyFile:  o.clientKey,
		},
	})
	if err != nil {
		return nil, usage(fmt.Errorf("--to: %s", flagWords.Replace(err.Error())), "")
	}
	return target, nil
}

// flagWords turns a sink's names of settings, which are the file's, into flags.
var flagWords = strings.NewReplacer("url: ", "", "allow_private", "--allow-private", "ca_file", "--ca-file",
	"client_cert_file", "--client-cert-file", "client_key_file", "--client-key-file")

// dispatcher puts the loop together.
func (o *dispatchOptions) dispatcher(source outbox.Source, target outbox.Sink) *outbox.Dispatcher {
	return &outbox.Dispatcher{
		Source:         source,
		Sink:           target,
		Policy:         o.policy(),
		BatchSize:      o.batchSize,
		Parallel:       min(o.parallel, o.batchSize),
		Lease:          time.Duration(o.lease),
		RequestTimeout: time.Duration(o.requestTimeout),
		PollInterval:   time.Duration(o.pollInterval),
		Grace:          time.Duration(o.grace),
		Once:           o.once,
		Wait:           time.Duration(o.wait),
		MaxEvents:      o.maxEvents,
	}
}

func (o *dispatchOptions) policy() outbox.Policy {
	return outbox.Policy{
		MaxAttempts: o.maxAttempts,
		Backoff:     outbox.Backoff{Base: o.backoff.base, Cap: o.backoff.cap},
		Jitter:      o.jitter,
		MaxPayload:  int(o.maxPayload),
	}
}

func (o *dispatchOptions) queue(db *pgxpool.Pool, a *app) *outbox.Queue {
	return outbox.NewStore(db, a.global.schema).Queue(outbox.QueueOptions{
		Worker:       a.worker(),
		Lease:        time.Duration(o.lease),
		MaxAttempts:  o.maxAttempts,
		PollInterval: time.Duration(o.pollInterval),
		Only:         o.only,
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
	return readSecrets(file)
}

func readSecrets(file string) ([]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, usage(fmt.Errorf("--secret-file: %w", err), "")
	}
	secrets := strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' || r == '\r' })
	secrets = slices.DeleteFunc(secrets, func(s string) bool { return strings.TrimSpace(s) == "" })
	if len(secrets) == 0 {
		return nil, usage(fmt.Errorf("--secret-file: %s has no secret", file), "")
	}
	return secrets, nil
}
