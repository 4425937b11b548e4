package commands

import (
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

// configFile is the file that --config names: settings by the names of their flags, with _ for -.
type configFile struct {
	path     string
	settings map[string]configSetting // by key
	redact   outbox.Redaction
	redacted configSetting // the same as it is written
}

// configSetting is one value of the file.
type configSetting struct {
	texts []string // one, unless the setting is a list
	line  int
	value *yaml.Node
}

// maxConfigFile is more than anybody writes by hand.
const maxConfigFile = 1 << 20

// loadConfig reads the file, if there is one. All mistakes in it are one error.
func (a *app) loadConfig(from string) error {
	if a.global.config == "" {
		return nil
	}
	text, err := readConfigFile(a.global.config)
	if err != nil {
		return usage(fmt.Errorf("%s: %w", from, err), "")
	}
	file, r := parseConfig(a.global.config, text, a.Process)
	if len(r.mistakes) > 0 {
		return r.failure()
	}
	a.file = file
	return nil
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
func parseConfig(path string, text []byte, p Process) (*configFile, *configReader) {
	f := &configFile{path: path, settings: map[string]configSetting{}}
	r := newConfigReader(path, text, p.Getenv)
	if root := r.parse(text); root != nil {
		f.read(r, root, p)
	}
	r.sort()
	return f, r
}

func (f *configFile) read(r *configReader, root *yaml.Node, p Process) {
	known := fileFlags(p)
	for _, pair := range r.pairs(root, "the file") {
		switch flags := known[pair.name]; {
		case pair.name == "redact":
			f.readRedact(r, pair)
		case flags != nil:
			f.readSetting(r, pair, flags)
		default:
			r.complain(pair.key, "%s", unknownKey(pair.name, slices.Sorted(maps.Keys(known)), p))
		}
	}
	f.checkGlobals(r, known)
}

// readSetting checks a value against the flags of its name, which several commands may have.
func (f *configFile) readSetting(r *configReader, pair configPair, flags []*pflag.Flag) {
	_, isList := flags[0].Value.(pflag.SliceValue)
	setting := configSetting{line: pair.key.Line, value: pair.value}
	if isList {
		setting.texts = r.texts(pair.value, pair.name)
	} else if text, ok := r.text(pair.value, pair.name); ok {
		setting.texts = []string{text}
	}
	if name := flags[0].Name; !secretFlags[name] && name != "to" { // a URL can hold a password
		r.show(pair.value)
	}
	if len(setting.texts) == 0 {
		return
	}
	for _, flag := range flags {
		if err := setting.set(flag); err != nil {
			r.complain(pair.value, "%s: %s", pair.name, r.unexpanded(err.Error(), setting.texts[0], pair.value))
			return
		}
	}
	f.settings[pair.name] = setting
}

// set gives the value to a flag.
func (s configSetting) set(flag *pflag.Flag) error {
	if list, ok := flag.Value.(pflag.SliceValue); ok {
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
			r.complain(item, "redact: %s", r.unexpanded(err.Error(), path, item))
			continue
		}
		f.redacted.texts = append(f.redacted.texts, path)
	}
	f.redact, _ = outbox.NewRedaction(f.redacted.texts...) // each has been read above
}

// checkGlobals refuses values of the global settings that make no sense, as prepare does.
func (f *configFile) checkGlobals(r *configReader, known map[string][]*pflag.Flag) {
	for _, rule := range globalRules(func(name string) string { return known[fileKey(name)][0].Value.String() }) {
		if setting, ok := f.settings[fileKey(rule.flag)]; ok && rule.bad {
			r.complain(setting.value, "%s %s", fileKey(rule.flag), r.unexpanded(rule.say, setting.texts[0], setting.value))
		}
	}
}

// fileFlags returns the flags that can be set in a file, by their key. They belong to a command line
// of their own, which is never run: what the file says can be tried on them.
func fileFlags(p Process) map[string][]*pflag.Flag {
	known := map[string][]*pflag.Flag{}
	add := func(flag *pflag.Flag) {
		if flag.Name != "config" && !selects(flag) {
			known[fileKey(flag.Name)] = append(known[fileKey(flag.Name)], flag)
		}
	}
	root := newRoot(&app{Process: p})
	root.PersistentFlags().VisitAll(add)
	eachCommand(root, func(cmd *cobra.Command) { cmd.LocalNonPersistentFlags().VisitAll(add) })
	return known
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
func (f *configFile) at(s configSetting) string { return fmt.Sprintf("%s:%d", f.path, s.line) }

// unknownKey says what a key that cannot stand there might have been meant to be.
func unknownKey(name string, known []string, p Process) string {
	flag := strings.ReplaceAll(name, "_", "-")
	if slices.Contains(known, fileKey(name)) {
		return fmt.Sprintf("there is no setting %q; it is written %s", name, fileKey(name))
	}
	if onlyTyped(flag, p) {
		return fmt.Sprintf("%s cannot be set here: what selects events or agrees to something is typed, as --%s", name, flag)
	}
	if near := nearest(name, append(known, "redact")); near != "" {
		return fmt.Sprintf("there is no setting %q; did you mean %s?", name, near)
	}
	return fmt.Sprintf("there is no setting %q", name)
}

// onlyTyped reports whether there is such a flag that selects or consents.
func onlyTyped(name string, p Process) bool {
	found := false
	root := newRoot(&app{Process: p})
	look := func(flag *pflag.Flag) { found = found || flag.Name == name && selects(flag) }
	root.PersistentFlags().VisitAll(look)
	eachCommand(root, func(cmd *cobra.Command) { cmd.LocalNonPersistentFlags().VisitAll(look) })
	return found
}

// nearest returns the word that is at most two slips away from a mistyped one; "" for none.
func nearest(typed string, words []string) string {
	best, slips := "", 3
	for _, word := range words {
		if n := distance(typed, word); n < slips && n < len(word)/2 {
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
