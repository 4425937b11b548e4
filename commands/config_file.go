package commands

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"

	"github.com/outboxctl/outboxctl/outbox"
)

// configFile is the file that --config names: settings by the names of their flags, with _ for -,
// destinations and routes.
type configFile struct {
	path     string
	settings map[string]*configSetting // by key
	redact   outbox.Redaction
	redacted configSetting   // the same as it is written; its line is 0 without
	asked    map[string]bool // the variables that it names

	destinations     []*fileDestination
	destinationsNode *yaml.Node // nil when there are none
	routes           []fileRoute
	routesNode       *yaml.Node
}

// configSetting is one value of the file.
type configSetting struct {
	texts []string // one, unless the setting is a list
	line  int
	value *yaml.Node
}

// maxConfigFile is more than anybody writes by hand.
const maxConfigFile = 1 << 20

// wholeFileMark is the annotation of a command that looks at destinations and routes, too; others can
// do without the secrets in there.
const wholeFileMark = "reads destinations"

// loadConfig reads the file, if there is one. All mistakes in it are one error.
func (a *app) loadConfig(from string, whole bool) error {
	if a.global.config == "" {
		return nil
	}
	file, err := readConfig(a.global.config, a.Process, whole)
	if _, mistakes := errors.AsType[*failure](err); err != nil && !mistakes {
		return usage(fmt.Errorf("%s: %w", from, err), "")
	}
	a.file = file
	return err
}

// readConfig reads a file; the mistakes in it are a failure that shows them.
func readConfig(path string, p Process, whole bool) (*configFile, error) {
	text, err := readConfigFile(path)
	if err != nil {
		return nil, err
	}
	file, r := parseConfig(path, text, p, fileFlags(p), whole)
	if len(r.mistakes) > 0 {
		return nil, r.failure()
	}
	return file, nil
}

func readConfigFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxConfigFile+1))
	if err == nil && len(text) > maxConfigFile {
		err = fmt.Errorf("%s is larger than %s", path, printSize(maxConfigFile))
	}
	return text, err
}

// parseConfig reads the text of a file; its mistakes are in the reader.
func parseConfig(path string, text []byte, p Process, known flagsByKey, whole bool) (*configFile, *configReader) {
	f := &configFile{path: path, settings: map[string]*configSetting{}}
	r := newConfigReader(path, text, p.Getenv)
	if root := r.parse(text); root != nil {
		f.read(r, root, known, whole)
	}
	r.sort()
	f.asked = r.asked
	return f, r
}

func (f *configFile) read(r *configReader, root *yaml.Node, known flagsByKey, whole bool) {
	pairs := r.pairs(root, "the file")
	for _, pair := range pairs {
		switch pair.name {
		case "destinations":
			f.destinationsNode = pair.key
		case "routes":
			f.routesNode = pair.key
		}
	}
	for _, pair := range pairs {
		switch flags := known.file[pair.name]; {
		case pair.name == "destinations":
			if whole {
				f.readDestinations(r, pair.value)
			}
		case pair.name == "redact":
			f.readRedact(r, pair)
		case pair.name == "routes": // when all destinations are known
		case len(flags) > 0 && f.destinationsNode != nil && belongsToDestination(flags):
			r.complain(pair.key, "%s stands under a destination%s", pair.name, keyedAs(pair.name))
		case len(flags) > 0:
			f.readSetting(r, pair, flags)
		default:
			r.complain(pair.key, "%s", known.unknown(pair.name))
		}
	}
	f.checkGlobals(r, known)
	f.checkOnlyDestination(r)
	if whole {
		f.readWhole(r, pairs)
	}
}

// keyedAs says what a flag's name is called under a destination, when that differs.
func keyedAs(name string) string {
	if key := keyOf(strings.ReplaceAll(name, "_", "-")); key != name {
		return ", as " + key
	}
	return ""
}

// readWhole reads what needs all destinations.
func (f *configFile) readWhole(r *configReader, pairs []configPair) {
	for _, pair := range pairs {
		if pair.name == "routes" {
			f.readRoutes(r, pair.value)
		}
	}
	f.checkDeadLetters(r)
	f.assign(r)
	for _, d := range f.destinations {
		d.checkFiles(r)
	}
}

// belongsToDestination reports whether one of the flags does.
func belongsToDestination(flags []*pflag.Flag) bool {
	return slices.ContainsFunc(flags, func(f *pflag.Flag) bool { return f.Annotations[destinationMark] != nil })
}

// readSetting checks a value against the flags of its name, which several commands may have.
func (f *configFile) readSetting(r *configReader, pair configPair, flags []*pflag.Flag) {
	name := flags[0].Name
	setting := r.setting(pair, pair.name, flags[0], secretFlags[name] || name == "to") // a URL can hold a password
	if setting == nil {
		return
	}
	for _, flag := range flags {
		if err := setting.set(flag); err != nil {
			r.complain(pair.value, "%s: %s", pair.name, r.unexpanded(err.Error(), setting.texts, pair.value))
			return
		}
	}
	f.settings[pair.name] = setting
}

// set gives the value to a flag.
func (s *configSetting) set(flag *pflag.Flag) error {
	if list, ok := flag.Value.(pflag.SliceValue); ok {
		for _, text := range s.texts {
			if err := list.Replace([]string{text}); err != nil {
				return wrongValue(flag, text, err)
			}
		}
		return list.Replace(s.texts)
	}
	if err := flag.Value.Set(s.texts[0]); err != nil {
		return wrongValue(flag, s.texts[0], err)
	}
	return nil
}

func (f *configFile) readRedact(r *configReader, pair configPair) {
	r.show(pair.value)
	f.redacted = configSetting{line: pair.key.Line}
	for _, item := range r.items(pair.value) {
		path, ok := r.text(item, "redact")
		if !ok {
			continue
		}
		if _, err := outbox.NewRedaction(path); err != nil {
			r.complain(item, "redact: %s", r.unexpanded(err.Error(), []string{path}, item))
			continue
		}
		f.redacted.texts = append(f.redacted.texts, path)
	}
	f.redact, _ = outbox.NewRedaction(f.redacted.texts...) // each has been read above
}

// checkGlobals refuses values of the global settings that make no sense, as prepare does.
func (f *configFile) checkGlobals(r *configReader, known flagsByKey) {
	for _, rule := range globalRules(func(name string) string { return known.file[fileKey(name)][0].Value.String() }) {
		if setting, ok := f.settings[fileKey(rule.flag)]; ok && rule.bad {
			r.complain(setting.value, "%s %s", fileKey(rule.flag), r.unexpanded(rule.say, setting.texts, setting.value))
		}
	}
}

// checkOnlyDestination refuses settings without sense of the one destination that a file has which names
// none.
func (f *configFile) checkOnlyDestination(r *configReader) {
	var d destination
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	d.flags(fs)
	fs.VisitAll(func(flag *pflag.Flag) {
		if setting := f.settings[fileKey(flag.Name)]; setting != nil {
			_ = setting.set(flag) // it has been tried
		}
	})
	for _, rule := range d.rules() {
		if setting := f.settings[fileKey(rule.flag)]; setting != nil && rule.bad {
			r.complain(setting.value, "%s %s", fileKey(rule.flag), r.unexpanded(rule.say, setting.texts, setting.value))
		}
	}
}

// flagsByKey are all flags by their key. They belong to a command line of their own, which is never
// run: what the file says can be tried on them.
type flagsByKey struct {
	file  map[string][]*pflag.Flag // that can be set in a file
	typed map[string]bool          // that cannot
}

func fileFlags(p Process) flagsByKey {
	known := flagsByKey{map[string][]*pflag.Flag{}, map[string]bool{"config": true}}
	add := func(flag *pflag.Flag) {
		switch key := fileKey(flag.Name); {
		case selects(flag):
			known.typed[key] = true
		case flag.Name != "config":
			known.file[key] = append(known.file[key], flag)
		}
	}
	root := newRoot(&app{Process: p})
	root.PersistentFlags().VisitAll(add)
	eachCommand(root, func(cmd *cobra.Command) { cmd.LocalNonPersistentFlags().VisitAll(add) })
	return known
}

// unknown says what a key that cannot stand there might have been meant to be.
func (k flagsByKey) unknown(name string) string {
	words := append(slices.Sorted(maps.Keys(k.file)), "redact", "destinations", "routes")
	switch written := fileKey(name); {
	case written != name && slices.Contains(words, written):
		return fmt.Sprintf("there is no setting %q; it is written %s", name, written)
	case k.typed[written]:
		return fmt.Sprintf("%s cannot be set here: what selects events or agrees to something is typed, as --%s", name, strings.ReplaceAll(name, "_", "-"))
	}
	if near := nearest(name, words); near != "" {
		return fmt.Sprintf("there is no setting %q; did you mean %s?", name, near)
	}
	if key := destinationKeys[name]; key != "" || slices.Contains(specialKeys, name) {
		return fmt.Sprintf("%s stands under a destination", name)
	}
	return fmt.Sprintf("there is no setting %q", name)
}

// eachCommand visits our commands below cmd.
func eachCommand(cmd *cobra.Command, visit func(*cobra.Command)) {
	for _, sub := range cmd.Commands() {
		if sub.Name() == "help" || sub.Name() == "completion" {
			continue
		}
		visit(sub)
		eachCommand(sub, visit)
	}
}

// fileKey is the name of a flag in the file.
func fileKey(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

// fill sets the flags that neither the command line nor the environment has set.
func (f *configFile) fill(fs *pflag.FlagSet) error {
	if f == nil {
		return nil
	}
	var bad error
	fs.VisitAll(func(flag *pflag.Flag) {
		setting, ok := f.settings[fileKey(flag.Name)]
		if !ok || flag.Changed || selects(flag) || bad != nil {
			return
		}
		if err := setting.set(flag); err != nil {
			bad = usage(fmt.Errorf("%s: %s: %w", f.at(setting), fileKey(flag.Name), err), "")
			return
		}
		flag.Changed = true
		setOrigin(flag, f.at(setting))
	})
	return bad
}

// count is how many settings there are.
func (f *configFile) count() int {
	n := len(f.settings)
	if f.redacted.line > 0 {
		n++
	}
	return n
}

// at is where a setting stands, as editors understand it.
func (f *configFile) at(s *configSetting) string { return f.line(s.line) }

func (f *configFile) line(n int) string { return fmt.Sprintf("%s:%d", f.path, n) }

// nearest returns the word that is a slip or two away from a mistyped one; "" for none.
func nearest(typed string, words []string) string {
	best, slips := "", 3
	for _, word := range words {
		if n := distance(typed, word); n < slips && 3*n <= len(word) {
			best, slips = word, n
		}
	}
	return best
}

// distance counts the letters to change, add or leave out (Levenshtein's).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)]
}

// inConfigFile adds where the file says what is refused.
func (a *app) inConfigFile(f *failure) error {
	if a.cmd == nil || f.code != exitUsage || f.err == nil {
		return f.err
	}
	name, isFlag := strings.CutPrefix(f.err.Error(), "--")
	name, _, _ = strings.Cut(name, " ")
	flag := a.cmd.Flags().Lookup(strings.TrimSuffix(name, ":"))
	if !isFlag || flag == nil || a.file == nil || !strings.HasPrefix(originOf(flag), a.file.path+":") {
		return f.err
	}
	return fmt.Errorf("%s: %w", originOf(flag), f.err)
}
