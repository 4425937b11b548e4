package commands

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"

	"github.com/outboxctl/outboxctl/outbox/gate"
	"github.com/outboxctl/outboxctl/outbox/sink"
)

// destinationKeys are the settings of a destination in a file: by key, the flag that takes the value.
// A key with a dot stands in a mapping of that name.
var destinationKeys = map[string]string{
	"url": "to", "format": "format", "body": "body", "secret_file": "secret-file", "allow_private": "allow-private",
	"ca_file": "ca-file", "client_cert_file": "client-cert-file", "client_key_file": "client-key-file", "proxy": "proxy",
	"batch_size": "batch-size", "parallel": "parallel", "lease": "lease", "request_timeout": "request-timeout",
	"max_payload": "max-payload", "ordering": "ordering", "on_dead": "on-dead", "dead_letter": "dead-letter",
	"rate": "rate", "permanent": "permanent", "retryable": "retryable",
	"tenants.parallel": "tenant-parallel", "tenants.rate": "tenant-rate",
	"retry.max_attempts": "max-attempts", "retry.backoff": "backoff", "retry.schedule": "schedule", "retry.jitter": "jitter",
	"retry.share":      "retry-share",
	"breaker.failures": "breaker", "breaker.ratio": "breaker-ratio", "breaker.cooldown": "breaker-cooldown",
}

// specialKeys are the settings of a destination that are no flags: secrets, and mappings with names
// of the user's.
var specialKeys = []string{"secrets", "headers", "tenants.overrides"}

// hiddenKeys are those whose values may hold a secret.
var hiddenKeys = map[string]bool{"url": true, "proxy": true}

// fileDestination is a destination as it stands in a file.
type fileDestination struct {
	destination
	line     int
	key      *yaml.Node
	flags    *pflag.FlagSet
	values   map[string]*yaml.Node     // by key
	settings map[string]*configSetting // by key
	bad      []string                  // flags whose value was not understood
}

// readDestinations reads all of them, in the order of the file.
func (f *configFile) readDestinations(r *configReader, n *yaml.Node) {
	for _, pair := range r.pairs(n, "destinations") {
		if err := checkDestinationName(pair.name); err != nil {
			r.complain(pair.key, "%q: %s", pair.name, err)
		}
		f.destinations = append(f.destinations, f.readDestination(r, pair))
	}
	if len(f.destinations) == 0 && len(r.mistakes) == 0 {
		r.complain(n, "destinations is empty")
	}
}

func (f *configFile) readDestination(r *configReader, pair configPair) *fileDestination {
	d := &fileDestination{line: pair.key.Line, key: pair.key, values: map[string]*yaml.Node{}, settings: map[string]*configSetting{}}
	d.flags = pflag.NewFlagSet("", pflag.ContinueOnError)
	d.destination.key, d.name = pair.name, pair.name
	d.destination.flags(d.flags)
	d.more(d.flags)
	d.read(r, pair.value, "")
	folder := filepath.Dir(f.path)
	for _, file := range []*string{&d.secretFile, &d.caFile, &d.clientCert, &d.clientKey} {
		*file = beside(folder, *file)
	}
	d.check(r)
	return d
}

// read takes the settings of a mapping whose own key is before its keys: "retry.".
func (d *fileDestination) read(r *configReader, n *yaml.Node, before string) {
	what := "the destination " + d.name
	if before != "" {
		what = strings.TrimSuffix(before, ".")
	}
	for _, pair := range r.pairs(n, what) {
		key := before + pair.name
		d.values[key] = pair.value
		switch {
		case destinationKeys[key] != "":
			d.readSetting(r, key, pair)
		case slices.Contains(specialKeys, key):
			d.readSpecial(r, key, pair)
		case before == "" && slices.ContainsFunc(allDestinationKeys(), func(k string) bool { return strings.HasPrefix(k, key+".") }):
			d.read(r, pair.value, key+".")
		default:
			r.complain(pair.key, "%s", unknownDestinationKey(key, before))
		}
	}
}

func allDestinationKeys() []string {
	return append(slices.Sorted(maps.Keys(destinationKeys)), specialKeys...)
}

// unknownDestinationKey says what a key of a destination might have been meant to be.
func unknownDestinationKey(key, before string) string {
	words := map[string]string{"timeout": "request_timeout", "batch": "batch_size", "to": "url", "max_attempts": "retry.max_attempts",
		"backoff": "retry.backoff", "jitter": "retry.jitter", "schedule": "retry.schedule", "secret": "secrets", "order": "ordering"}
	near := cmp.Or(words[key], nearest(key, allDestinationKeys()))
	known := allDestinationKeys()
	if written := fileKey(key); slices.Contains(known, written) {
		near = written
	}
	switch name := strings.TrimPrefix(key, before); {
	case near != "":
		return fmt.Sprintf("a destination has no %q; did you mean %s?", name, near)
	case before != "":
		return fmt.Sprintf("%s has no %q", strings.TrimSuffix(before, "."), name)
	default:
		return fmt.Sprintf("a destination has no %q", name)
	}
}

func (d *fileDestination) readSetting(r *configReader, key string, pair configPair) {
	flag := d.flags.Lookup(destinationKeys[key])
	setting := r.setting(pair, key, flag, hiddenKeys[key])
	if setting == nil {
		d.bad = append(d.bad, flag.Name)
		return
	}
	if err := setting.set(flag); err != nil {
		d.bad = append(d.bad, flag.Name)
		r.complain(pair.value, "%s: %s", key, r.unexpanded(err.Error(), setting.texts, pair.value))
		return
	}
	flag.Changed = true
	d.settings[key] = setting
}

func (d *fileDestination) readSpecial(r *configReader, key string, pair configPair) {
	setting := &configSetting{line: pair.key.Line, value: pair.value}
	switch key {
	case "secrets":
		for _, secret := range r.texts(pair.value, key) {
			if secret != "" { // ${OLD:-} while there is no old one
				d.secrets = append(d.secrets, secret)
			}
		}
	case "headers":
		d.headers = map[string]string{}
		for _, header := range r.pairs(pair.value, key) {
			if value, ok := r.text(header.value, "headers."+header.name); ok {
				d.headers[header.name] = value
			}
		}
	case "tenants.overrides":
		d.tenants = map[string]gate.TenantLimit{}
		for _, tenant := range r.pairs(pair.value, key) {
			d.tenants[tenant.name] = readTenant(r, tenant)
		}
	}
	d.settings[key] = setting
}

// readTenant reads the limits of one tenant.
func readTenant(r *configReader, tenant configPair) (limit gate.TenantLimit) {
	var rate rateValue
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.IntVar(&limit.Parallel, "parallel", 0, "")
	fs.Var(&rate, "rate", "")
	r.flags(tenant.value, "tenants.overrides."+tenant.name, fs)
	if limit.Parallel < 0 {
		r.complain(tenant.value, "tenants.overrides.%s: parallel must not be negative", tenant.name)
	}
	limit.Rate = float64(rate)
	return limit
}

// check refuses what makes no sense, at its line.
func (d *fileDestination) check(r *configReader) {
	if n := len(d.schedule); n > 0 && !d.flags.Changed("max-attempts") {
		d.maxAttempts = n + 1
	}
	for _, rule := range d.rules() {
		if rule.bad && !d.misread(rule) {
			d.complain(r, keyOf(rule.flag), keyOf(rule.flag)+" "+inKeys(rule.say))
		}
	}
	if d.flags.Changed("schedule") && d.flags.Changed("backoff") {
		d.complain(r, "retry.schedule", "retry has both a schedule and a backoff: choose one")
	}
	if d.settings["secrets"] != nil && d.secretFile != "" {
		d.complain(r, "secret_file", "there are both secrets and a secret_file: choose one")
	}
}

// misread reports whether a rule speaks of a value that was not understood, which has been told.
func (d *fileDestination) misread(broken rule) bool {
	return slices.ContainsFunc(d.bad, func(flag string) bool {
		return flag == broken.flag || strings.Contains(broken.say, "--"+flag)
	})
}

// checkFiles looks into the files that the destination names, and has the sink look at its settings.
func (d *fileDestination) checkFiles(r *configReader) {
	if d.secretFile != "" {
		secrets, err := readSecrets(d.secretFile)
		if err != nil {
			d.complain(r, "secret_file", "secret_file: "+err.Error())
			return
		}
		d.secrets = secrets
	}
	o := d.sinkOptions("")
	o.Stdout = io.Discard
	if err := sink.Check(d.url, o); err != nil && d.url != "" {
		key, _, _ := strings.Cut(err.Error(), ":")
		key, _, _ = strings.Cut(key, " ") // client_cert_file and client_key_file go together
		d.complain(r, key, err.Error())
	}
}

// complain notes a mistake at the value of a key, or at the destination itself.
func (d *fileDestination) complain(r *configReader, key, say string) {
	n := d.values[key]
	if n == nil {
		n = d.key
	}
	if setting := d.settings[key]; setting != nil {
		say = r.unexpanded(say, setting.texts, setting.value)
	}
	r.complain(n, "%s: %s", d.name, say)
}

// keyOf is the key of a destination's flag.
func keyOf(flag string) string {
	for key, name := range destinationKeys {
		if name == flag {
			return key
		}
	}
	return fileKey(flag)
}

var flagWord = regexp.MustCompile(`--[a-z][a-z-]*`)

// inKeys speaks of keys where a text speaks of flags.
func inKeys(text string) string {
	return flagWord.ReplaceAllStringFunc(text, func(flag string) string { return keyOf(flag[2:]) })
}

// checkDeadLetters refuses a dead_letter that leads nowhere or in a circle: a copy has none of its own.
func (f *configFile) checkDeadLetters(r *configReader) {
	for _, d := range f.destinations {
		if d.deadLetter == "" {
			continue
		}
		switch target := f.destination(d.deadLetter); {
		case target == nil:
			d.complain(r, "dead_letter", fmt.Sprintf("dead_letter: there is no destination %q", d.deadLetter))
		case target == d:
			d.complain(r, "dead_letter", "dead_letter is the destination itself")
		case target.deadLetter != "":
			d.complain(r, "dead_letter", fmt.Sprintf("dead_letter: %s has a dead_letter of its own; what dies twice goes nowhere", target.name))
		}
	}
}

func (f *configFile) destination(name string) *fileDestination {
	i := slices.IndexFunc(f.destinations, func(d *fileDestination) bool { return d.destination.key == name })
	if i < 0 {
		return nil
	}
	return f.destinations[i]
}

// chosen are the destinations of these names, or all.
func (f *configFile) chosen(names []string) (all []*destination, err error) {
	for _, name := range names {
		known := slices.ContainsFunc(f.destinations, func(d *fileDestination) bool { return d.goesBy(name) })
		if !known {
			return nil, usage(fmt.Errorf("--destination: %s has no destination %q%s", f.path, name, f.nearDestination(name)), "")
		}
	}
	for _, d := range f.destinations {
		if len(names) == 0 || slices.ContainsFunc(names, d.goesBy) {
			all = append(all, &d.destination)
		}
	}
	return all, nil
}

// goesBy reports whether people may call the destination so.
func (d *fileDestination) goesBy(name string) bool {
	return name == d.destination.key || name == d.shown()
}

var errManyDestinations = errors.New("several destinations need routes, which say what events go where")

// assign says which events each destination serves: by its name, or, if it is the only one and there
// are no routes, those that have no destination.
func (f *configFile) assign(r *configReader) {
	var own []*fileDestination
	for _, d := range f.destinations {
		isTarget := slices.ContainsFunc(f.destinations, func(other *fileDestination) bool { return other.deadLetter == d.destination.key })
		if !isTarget {
			own = append(own, d)
		}
	}
	switch {
	case f.routesNode != nil:
	case len(own) == 1:
		own[0].name = ""
	case len(own) > 1:
		r.complain(f.destinationsNode, "%s", errManyDestinations)
	}
}

// shownSettings are all settings of the destination, with those that are not in the file.
func (d *fileDestination) shownSettings(f *configFile) (all []shownSetting) {
	before := "destinations." + d.destination.key + "."
	origin := func(key string) string {
		if setting := d.settings[key]; setting != nil {
			return f.at(setting)
		}
		return "default"
	}
	add := func(key, name string, value any) {
		all = append(all, shownSetting{before + name, value, origin(key)})
	}
	for key, name := range destinationKeys {
		value := typedValue(d.flags.Lookup(name).Value)
		if text, ok := value.(string); ok && hiddenKeys[key] {
			value = shownURL(text)
		}
		add(key, key, value)
	}
	secret := ""
	if d.settings["secrets"] != nil && len(d.secrets) > 0 {
		secret = secretIsSet
	}
	add("secrets", "secrets", secret)
	for header := range d.headers { // often the key of somebody's API
		add("headers", "headers."+header, secretIsSet)
	}
	for tenant, limit := range d.tenants {
		rate := rateValue(limit.Rate)
		add("tenants.overrides", "tenants.overrides."+tenant+".parallel", limit.Parallel)
		add("tenants.overrides", "tenants.overrides."+tenant+".rate", rate.String())
	}
	return all
}
