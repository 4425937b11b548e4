package commands

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/gate"
	"github.com/outboxctl/outboxctl/outbox/sink"
	"github.com/outboxctl/outboxctl/outbox/sink/webhook"
)

// destination is one place that events go to and how they are sent there: what the flags of dispatch
// say with --to, or a file under the destination's name.
type destination struct {
	name string // in the table; "" is the default one
	key  string // in the file; "" without one

	url        string
	format     string
	body       string
	secrets    []string // the one that signs first in front
	secretFile string
	headers    map[string]string
	private    bool
	caFile     string
	clientCert string
	clientKey  string
	proxy      string

	batchSize      int
	parallel       int
	lease          durationValue
	requestTimeout durationValue
	maxPayload     sizeValue
	ordering       string
	onDead         string

	maxAttempts int
	backoff     backoffValue
	schedule    durationList
	jitter      float64
	share       percentValue // of parallel, for retries
	permanent   []int
	retryable   []int
	deadLetter  string

	rate      rateValue
	tenants   map[string]gate.TenantLimit // overrides
	breaker   int
	ratio     percentValue
	cooldown  durationValue
	tenant    int // tenants.parallel
	tenantsBy rateValue
}

// destinationMark is the annotation of a flag that belongs to one destination.
const destinationMark = "belongs to a destination"

// flags are the settings that have flags.
func (d *destination) flags(all *pflag.FlagSet) {
	policy := outbox.DefaultPolicy()
	d.lease = durationValue(30 * time.Second)
	d.requestTimeout = durationValue(5 * time.Second)
	d.backoff = backoffValue{policy.Backoff.Base, policy.Backoff.Cap}

	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.StringVar(&d.url, "to", "", "where events go: an http or https `URL`, file:PATH or stdout:")
	fs.StringVar(&d.format, "format", "envelope", "`form` of a request's body: envelope or payload")
	fs.StringVar(&d.body, "body", "plain", "`form` of the envelope: plain, or with_sent_at to add the time of the attempt")
	fs.StringVar(&d.secretFile, "secret-file", "", "`file` with the signing secrets, one a line")
	fs.BoolVar(&d.private, "allow-private", false, "allow loopback and private addresses")
	fs.StringVar(&d.caFile, "ca-file", "", "PEM `file` with the only authorities to trust")
	fs.StringVar(&d.clientCert, "client-cert-file", "", "PEM `file` with the certificate to show to a receiver that asks for one")
	fs.StringVar(&d.clientKey, "client-key-file", "", "PEM `file` with its key")

	fs.StringVar(&d.ordering, "ordering", "none", "`whose` events are sent one after the other: none, or aggregate for those of each")
	fs.StringVar(&d.onDead, "on-dead", "continue", "with an ordering, `what` follows an event that failed for good: continue with the next, or hold")
	fs.IntVar(&d.batchSize, "batch-size", 100, "`number` of events claimed and not settled, at most")
	fs.IntVar(&d.parallel, "parallel", 10, "`number` of events being sent at once, at most")
	fs.Var(&d.lease, "lease", "how long a claimed event is this worker's")
	fs.Var(&d.requestTimeout, "request-timeout", "of one delivery")
	fs.IntVar(&d.maxAttempts, "max-attempts", policy.MaxAttempts, "`number` of failed attempts that make an event failed")
	fs.Var(&d.backoff, "backoff", "wait after the first failed attempt, doubled up to the cap")
	fs.Float64Var(&d.jitter, "jitter", policy.Jitter, "`share` by which a wait varies, 0 to 1")
	fs.Var(&d.maxPayload, "max-payload", "make an event with a larger payload a dead letter, unsent: 64KiB, 1MiB")
	d.limitFlags(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		f.Annotations = map[string][]string{destinationMark: {"true"}}
		all.AddFlag(f)
	})
}

// more are the settings that only a file has.
func (d *destination) more(fs *pflag.FlagSet) {
	fs.StringVar(&d.proxy, "proxy", "", "")
	fs.StringVar(&d.deadLetter, "dead-letter", "", "")
	fs.Var(&d.schedule, "schedule", "")
	fs.IntSliceVar(&d.permanent, "permanent", nil, "")
	fs.IntSliceVar(&d.retryable, "retryable", nil, "")
	fs.Var(&d.ratio, "breaker-ratio", "")
	d.breaker = 10
	fs.Lookup("breaker").DefValue = "10"
}

// rules says which settings make no sense.
func (d *destination) rules() []rule {
	inRange := func(codes []int) bool {
		return !slices.ContainsFunc(codes, func(code int) bool { return code < 1 || code > 999_999 })
	}
	return []rule{
		{"to", d.url == "", "is missing: give the URL to deliver to"},
		{"batch-size", d.batchSize < 1, "must be 1 or more"},
		{"parallel", d.parallel < 1, "must be 1 or more"},
		{"batch-size", d.batchSize > 100_000, "must be 100000 or less"},
		{"parallel", d.parallel > 10_000, "must be 10000 or less"},
		{"max-attempts", d.maxAttempts < 1, "must be 1 or more"},
		{"request-timeout", d.requestTimeout <= 0, "must be longer than 0"},
		{"lease", d.lease < d.requestTimeout+durationValue(2*time.Second), fmt.Sprintf("%s is too short: want --request-timeout and 2s, %s or more",
			&d.lease, printDuration(time.Duration(d.requestTimeout)+2*time.Second))},
		{"backoff", d.backoff.base <= 0, "must begin above 0"},
		{"backoff", d.backoff.cap < d.backoff.base, "must not end below its begin"},
		{"jitter", math.IsNaN(d.jitter) || d.jitter < 0 || d.jitter > 1, "must be between 0 and 1"},
		{"format", d.format != "envelope" && d.format != "payload", fmt.Sprintf("%q: want envelope or payload", d.format)},
		{"body", d.body != "plain" && d.body != "with_sent_at", fmt.Sprintf("%q: want plain or with_sent_at", d.body)},
		{"ordering", d.ordering != "none" && d.ordering != "aggregate" && d.ordering != "", fmt.Sprintf("%q: want none or aggregate", d.ordering)},
		{"on-dead", d.onDead != "continue" && d.onDead != "hold" && d.onDead != "", fmt.Sprintf("%q: want continue or hold", d.onDead)},
		{"on-dead", d.onDead == "hold" && d.ordering != "aggregate", "hold needs --ordering aggregate"},
		{"schedule", slices.ContainsFunc(d.schedule, func(wait time.Duration) bool { return wait <= 0 }), "has a wait that is not longer than 0"},
		{"tenant-parallel", d.tenant < 0, "must not be negative"},
		{"breaker", d.breaker < 0, "must not be negative"},
		{"breaker-cooldown", d.cooldown <= 0 && (d.breaker > 0 || d.ratio > 0), "must be longer than 0"},
		{"permanent", !inRange(d.permanent), "has a number that is no code of an answer"},
		{"retryable", !inRange(d.retryable), "has a number that is no code of an answer"},
		{"retryable", slices.ContainsFunc(d.retryable, func(code int) bool { return slices.Contains(d.permanent, code) }), "and --permanent have a code in common"},
	}
}

// sinkOptions is what the sink wants to know.
func (d *destination) sinkOptions(version string) sink.Options {
	return sink.Options{Webhook: webhook.Config{
		Format:       webhook.Format(d.format),
		Version:      version,
		Secrets:      d.secrets,
		Headers:      d.headers,
		Timeout:      time.Duration(d.requestTimeout),
		Parallel:     d.parallel,
		BodySentAt:   d.body == "with_sent_at",
		AllowPrivate: d.private,
		CAFile:       d.caFile,
		Proxy:        d.proxy,

		ClientCertFile: d.clientCert,
		ClientKeyFile:  d.clientKey,
	}}
}

func (d *destination) policy() outbox.Policy {
	return outbox.Policy{
		MaxAttempts: d.maxAttempts,
		Backoff:     outbox.Backoff{Base: d.backoff.base, Cap: d.backoff.cap},
		Jitter:      d.jitter,
		MaxPayload:  int(d.maxPayload),
		Schedule:    d.schedule,
		Permanent:   d.permanent,
		Retryable:   d.retryable,
	}
}

// shown is what people call the destination.
func (d *destination) shown() string { return destinationName(d.name) }

// readSecrets reads a file with one secret a line.
func readSecrets(file string) ([]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	secrets := strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' || r == '\r' })
	secrets = slices.DeleteFunc(secrets, func(s string) bool { return strings.TrimSpace(s) == "" })
	if len(secrets) == 0 {
		return nil, fmt.Errorf("%s has no secret", file)
	}
	return secrets, nil
}

// durationList is a list of durations: 5s, 5m, 2h.
type durationList []time.Duration

func (v *durationList) Type() string   { return "durations" }
func (v *durationList) String() string { return strings.Join(v.GetSlice(), ",") }

func (v *durationList) Set(s string) error { return v.Replace(strings.Split(s, ",")) }

// Append implements [pflag.SliceValue].
func (v *durationList) Append(s string) error {
	d, err := parseDuration(strings.TrimSpace(s))
	if err == nil {
		*v = append(*v, d)
	}
	return err
}

// Replace implements [pflag.SliceValue].
func (v *durationList) Replace(texts []string) error {
	*v = nil
	for _, text := range texts {
		if err := v.Append(text); err != nil {
			return err
		}
	}
	return nil
}

// GetSlice implements [pflag.SliceValue].
func (v *durationList) GetSlice() (texts []string) {
	for _, d := range *v {
		texts = append(texts, printDuration(d))
	}
	return texts
}

// destinationFormat is what a destination may be called: what needs no quotes anywhere.
var destinationFormat = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$`)

func checkDestinationName(name string) error {
	switch {
	case name == destinationName(""):
		return errors.New("default is what events without a destination are shown under")
	case !destinationFormat.MatchString(name):
		return errors.New("a destination's name has letters, digits and _ . - , and at most 100 of them")
	}
	return nil
}

// beside is a path as it is meant in a file in folder: relative to that.
func beside(folder, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(folder, path)
}
