package commands

import (
	"cmp"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v4"
)

// configSource is the text of a configuration file, to be shown without what may be a secret: of
// values only those that are known to be none.
type configSource struct {
	lines  []string
	root   *yaml.Node // nil when the text cannot be parsed
	public map[*yaml.Node]bool
}

func newConfigSource(text []byte) *configSource {
	lines := strings.Split(strings.TrimPrefix(string(text), "\uFEFF"), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSuffix(line, "\r")
	}
	return &configSource{lines: lines, public: map[*yaml.Node]bool{}}
}

// show says that a value is no secret, nor are the elements of a list.
func (s *configSource) show(n *yaml.Node) {
	if n.Kind == yaml.MappingNode { // names in it that nobody knows can have any value
		return
	}
	s.public[n] = true
	for _, child := range n.Content {
		s.show(child)
	}
}

// at is a character of the text; 0 beyond it.
func (s *configSource) at(line, column int) rune {
	if line < 1 || line > len(s.lines) {
		return 0
	}
	if runes := []rune(s.lines[line-1]); column >= 1 && column <= len(runes) {
		return runes[column-1]
	}
	return 0
}

// excerpt is a line and a mark below the column.
func (s *configSource) excerpt(line, column int) []string {
	if line < 1 || line > len(s.lines) {
		return nil
	}
	text, column := s.safe(line, column)
	text = cell(text)
	number := fmt.Sprintf("%5d", line)
	return []string{
		strings.TrimRight(number+" | "+text, " "),
		strings.Repeat(" ", len(number)) + " | " + strings.Repeat(" ", max(column-1, 0)) + "^",
	}
}

// span is a part of a line, from one column up to before another.
type span struct{ from, to int }

// safe is a line with … for what may be a secret, and where the column is then.
func (s *configSource) safe(line, column int) (string, int) {
	runes := []rune(s.lines[line-1])
	var out []rune
	at := 1
	shifted := column
	for _, hidden := range s.hidden(line, len(runes)+1) {
		out = append(out, runes[at-1:hidden.from-1]...)
		if column >= hidden.from && column < hidden.to {
			shifted = len(out) + 1
		}
		out = append(out, '…')
		if column >= hidden.to {
			shifted = len(out) + 1 + column - hidden.to
		}
		at = hidden.to
	}
	out = append(out, runes[at-1:]...)
	return cell(strings.ReplaceAll(string(out), "\t", " ")), min(shifted, len(out)+1)
}

// hidden lists the parts of a line to leave out; end is the column behind its last.
func (s *configSource) hidden(line, end int) []span {
	if s.root == nil {
		return s.hiddenUnparsed(line, end)
	}
	nodes := inOrder(s.root, true, nil)
	var spans []span
	for i, n := range nodes {
		if n.key || s.public[n.Node] || n.Kind != yaml.ScalarNode {
			continue
		}
		if hide := s.part(line, end, n, nodes[i+1:]); hide.from < hide.to {
			spans = append(spans, hide)
		}
	}
	return spans
}

// part is what of a line belongs to the value of n: from where that begins up to the next one, less the
// punctuation between the two.
func (s *configSource) part(line, end int, n placed, after []placed) span {
	hide, punctuation := span{n.Column, end}, ""
	switch {
	case n.Line > line, len(after) > 0 && after[0].Line < line:
		return span{}
	case n.Line < line: // text of several lines, or nothing of it
		hide.from, punctuation = 1, " \t,[]{}-"
	}
	if len(after) > 0 && after[0].Line == line {
		hide.to, punctuation = after[0].Column, cmp.Or(punctuation, " \t,[]{}")
	}
	for hide.to > hide.from && punctuation != "" && strings.ContainsRune(punctuation, s.at(line, hide.to-1)) {
		hide.to--
	}
	return hide
}

// hiddenUnparsed is all behind the first colon, or behind the dash of a list.
func (s *configSource) hiddenUnparsed(line, end int) []span {
	runes := []rune(s.lines[line-1])
	for i, c := range runes {
		if c != ':' && (c != '-' || strings.TrimSpace(string(runes[:i])) != "") {
			continue
		}
		from := i + 2
		if from < end && runes[from-1] == ' ' {
			from++
		}
		if from >= end {
			return nil
		}
		return []span{{from, end}}
	}
	if end == 1 {
		return nil
	}
	return []span{{1, end}}
}

// placed is a node and whether it is a key.
type placed struct {
	*yaml.Node
	key bool
}

// inOrder lists the nodes as they stand in the text. An alias counts for itself.
func inOrder(n *yaml.Node, key bool, all []placed) []placed {
	all = append(all, placed{n, key})
	for i, child := range n.Content {
		all = inOrder(child, n.Kind == yaml.MappingNode && i%2 == 0, all)
	}
	return all
}
