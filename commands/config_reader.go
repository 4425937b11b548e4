package commands

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"
)

// configReader walks the nodes of a configuration file and collects what is wrong with it, so that
// one look shows all of it. Values that may be secrets are not shown.
type configReader struct {
	path     string
	getenv   func(string) string
	source   *configSource
	mistakes []configMistake
	asked    map[string]bool // the variables that values name
}

// configMistake is one thing to mend in a file.
type configMistake struct {
	line, column int
	say          string
}

// configPair is a key of a mapping and its value.
type configPair struct {
	name       string
	key, value *yaml.Node
}

func newConfigReader(path string, text []byte, getenv func(string) string) *configReader {
	r := &configReader{path: path, source: newConfigSource(text), asked: map[string]bool{}}
	r.getenv = func(name string) string {
		r.asked[name] = true
		return getenv(name)
	}
	return r
}

// parse returns the root of the document, nil when there is none or it cannot be parsed.
func (r *configReader) parse(text []byte) *yaml.Node {
	loader, err := yaml.NewLoader(bytes.NewReader(text))
	if err != nil {
		r.mistake(1, 1, err.Error())
		return nil
	}
	var document, next yaml.Node
	if err := loader.Load(&document); err != nil {
		r.syntax(err)
		return nil
	}
	err = loader.Load(&next)
	if err != nil && !errors.Is(err, io.EOF) {
		r.syntax(err)
		return nil
	}
	r.source.root = &document
	if err == nil {
		r.complain(&next, "there is a second document; a file has one")
	}
	if len(document.Content) == 0 {
		return nil
	}
	return document.Content[0]
}

// syntax notes what the parser stumbled over.
func (r *configReader) syntax(err error) {
	if errors.Is(err, io.EOF) { // empty, or comments alone
		return
	}
	parse, ok := errors.AsType[*yaml.LoadError](err)
	if !ok || parse.Mark.Line == 0 {
		r.mistake(1, 1, "not YAML: "+oneLine(strings.TrimPrefix(err.Error(), "yaml: ")))
		return
	}
	say := "not YAML: " + parse.Message
	if r.source.at(parse.Mark.Line, parse.Mark.Column) == '\t' {
		say = "a tab; YAML indents with blanks"
	} else if begin := parse.ContextMark; begin.Line > 0 && parse.ContextMsg != "" {
		say += fmt.Sprintf(", %s that begins at %d:%d", parse.ContextMsg, begin.Line, begin.Column)
	}
	r.mistake(parse.Mark.Line, parse.Mark.Column, say)
}

func (r *configReader) mistake(line, column int, say string) {
	r.mistakes = append(r.mistakes, configMistake{line, column, say})
}

func (r *configReader) complain(n *yaml.Node, format string, args ...any) {
	r.mistake(n.Line, n.Column, fmt.Sprintf(format, args...))
}

func (r *configReader) sort() {
	slices.SortStableFunc(r.mistakes, func(x, y configMistake) int {
		return cmp.Or(x.line-y.line, x.column-y.column)
	})
}

// pairs returns the keys of a mapping, each once.
func (r *configReader) pairs(n *yaml.Node, what string) (all []configPair) {
	n = resolved(n)
	if n.Kind != yaml.MappingNode {
		r.complain(n, "%s is not made of keys and values", what)
		return nil
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		switch name := key.Value; {
		case key.Kind != yaml.ScalarNode:
			r.complain(key, "this is no name of a setting")
		case lines[name] > 0:
			r.complain(key, "%s is there twice, first in line %d", name, lines[name])
		default:
			lines[name] = key.Line
			all = append(all, configPair{name, key, value})
		}
	}
	return all
}

// text returns a single value, with the variables in it replaced.
func (r *configReader) text(n *yaml.Node, name string) (string, bool) {
	n = resolved(n)
	switch {
	case n.Kind == yaml.SequenceNode:
		r.complain(n, "%s is a list; it takes one value", name)
		return "", false
	case n.Kind != yaml.ScalarNode:
		r.complain(n, "%s is a mapping; it takes one value", name)
		return "", false
	case n.Tag == "!!null":
		r.complain(n, "%s has no value; leave it out for the default", name)
		return "", false
	}
	text, err := expand(n.Value, r.getenv)
	if err != nil {
		r.complain(n, "%s: %s", name, err)
		return "", false
	}
	return text, true
}

// items returns the elements of a list; a value alone is a list of one.
func (r *configReader) items(n *yaml.Node) []*yaml.Node {
	if n = resolved(n); n.Kind == yaml.SequenceNode {
		return n.Content
	}
	return []*yaml.Node{n}
}

func (r *configReader) texts(n *yaml.Node, name string) (all []string) {
	for _, item := range r.items(n) {
		if text, ok := r.text(item, name); ok {
			all = append(all, text)
		}
	}
	return all
}

// setting reads the value of a key as the flag takes it, nil when that is a mistake. hidden says that it
// may be a secret.
func (r *configReader) setting(pair configPair, name string, flag *pflag.Flag, hidden bool) *configSetting {
	setting := &configSetting{line: pair.key.Line, value: pair.value}
	if !hidden {
		r.show(pair.value)
	}
	before := len(r.mistakes)
	if _, isList := flag.Value.(pflag.SliceValue); isList {
		setting.texts = r.texts(pair.value, name)
	} else if text, ok := r.text(pair.value, name); ok {
		setting.texts = []string{text}
	}
	if len(r.mistakes) > before {
		return nil
	}
	return setting
}

// flags reads a mapping whose keys are the names of flags, or special. It returns the values by key.
func (r *configReader) flags(n *yaml.Node, what string, fs *pflag.FlagSet, special ...string) map[string]*yaml.Node {
	values := map[string]*yaml.Node{}
	for _, pair := range r.pairs(n, what) {
		flag := fs.Lookup(pair.name)
		if flag == nil && !slices.Contains(special, pair.name) {
			r.complain(pair.key, "%s has no %q%s", what, pair.name, nearFlag(fs, pair.name, special))
			continue
		}
		values[pair.name] = pair.value
		if flag == nil {
			continue
		}
		setting := r.setting(pair, pair.name, flag, false)
		if setting == nil {
			continue
		}
		if err := setting.set(flag); err != nil {
			r.complain(pair.value, "%s: %s", pair.name, r.unexpanded(err.Error(), setting.texts, pair.value))
			continue
		}
		flag.Changed = true
	}
	return values
}

func nearFlag(fs *pflag.FlagSet, name string, words []string) string {
	fs.VisitAll(func(f *pflag.Flag) { words = append(words, f.Name) })
	if near := nearest(name, words); near != "" {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	return ""
}

// show says that a value is no secret.
func (r *configReader) show(n *yaml.Node) { r.source.show(n) }

// unexpanded puts the variables back into a message: what they hold may be a secret.
func (r *configReader) unexpanded(say string, texts []string, n *yaml.Node) string {
	for i, item := range r.items(n) {
		raw := resolved(item).Value
		if i >= len(texts) || raw == texts[i] || texts[i] == "" {
			continue
		}
		quoted := strconv.Quote(texts[i])
		say = strings.NewReplacer(quoted[1:len(quoted)-1], raw, texts[i], raw).Replace(say)
	}
	return say
}

// configError is a file with mistakes.
type configError struct {
	path     string
	mistakes []string // each with its place
}

func (e *configError) Error() string {
	return fmt.Sprintf("%s: %s", e.path, counted(int64(len(e.mistakes)), "mistake"))
}

// failure is all mistakes as one error, each with its line.
func (r *configReader) failure() error {
	err := &configError{path: r.path}
	var lines []string
	for _, m := range r.mistakes {
		text := fmt.Sprintf("%s:%d:%d: %s", r.path, m.line, m.column, oneLine(m.say))
		err.mistakes = append(err.mistakes, text)
		lines = append(append(lines, text), r.source.excerpt(m.line, m.column)...)
	}
	return usage(err, strings.Join(lines, "\n  "))
}

// inOneLine is an error for a log: a file's mistakes one after the other.
func inOneLine(err error) string {
	if bad, ok := errors.AsType[*configError](err); ok {
		return strings.Join(bad.mistakes, "; ")
	}
	return oneLine(err.Error())
}

// resolved follows an alias to what it stands for.
func resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// expand replaces ${NAME} and ${NAME:-default} in a value, never in the file's text: what a variable
// holds stays one value, whatever is in it. $${ is ${ as it stands.
func expand(text string, getenv func(string) string) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		if literal, escaped := strings.CutSuffix(before, "$"); found && escaped {
			out.WriteString(literal + "${")
			text = rest
			continue
		}
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		inside, after, closed := strings.Cut(rest, "}")
		name, standard, hasDefault := strings.Cut(inside, ":-")
		if !closed || !variableName(name) || strings.Contains(standard, "${") {
			return "", errors.New("want ${NAME} or ${NAME:-default}; a ${ that is meant so is written $${")
		}
		value := getenv(name)
		if value == "" && !hasDefault {
			return "", fmt.Errorf("%s is not set in the environment; ${%s:-} is empty without it", name, name)
		}
		out.WriteString(cmp.Or(value, standard))
		text = after
	}
}

func variableName(name string) bool {
	return name != "" && utf8.ValidString(name) && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == ""
}
