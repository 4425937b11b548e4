package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/theory/jsonpath"
	"github.com/theory/jsonpath/spec"
)

// Redaction says which values of a JSON document people should not see, by JSON paths as in RFC 9535:
// $.email, $.card.*, $.items[*].email, $..token, $['first.name'], or $ for the whole. The zero value
// hides nothing.
//
// What is not hidden comes out byte for byte: the digits of numbers, the order of names, blanks.
type Redaction struct{ paths []*jsonpath.Path }

// NewRedaction reads paths. The error names the first that is none.
func NewRedaction(paths ...string) (Redaction, error) {
	var r Redaction
	for _, text := range paths {
		path, err := jsonpath.Parse(text)
		if err != nil {
			return Redaction{}, fmt.Errorf("%q is not a JSON path: %s", text, pathTrouble(text, err))
		}
		r.paths = append(r.paths, path)
	}
	return r, nil
}

func pathTrouble(text string, err error) string {
	if !strings.HasPrefix(text, "$") {
		return "it begins with $, as in $.email or $.card.*"
	}
	why := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "jsonpath: "), "eof", "end")
	return why + "; names with other characters than letters, digits and _ are written $['first-name']"
}

// Empty reports whether r hides nothing.
func (r Redaction) Empty() bool { return len(r.paths) == 0 }

// String lists the paths.
func (r Redaction) String() string {
	var all []string
	for _, path := range r.paths {
		all = append(all, path.String())
	}
	return strings.Join(all, ", ")
}

// Mask puts in the place of hidden values what they are: "‹string, 17›" with the number of
// characters, "‹number, 4›" of digits, "‹object, 3›" of members, "‹array, 2›" of elements,
// "‹boolean›". A null stays. An error means that doc cannot be judged: it is no JSON, or has a name
// twice; show nothing of it then.
func (r Redaction) Mask(doc []byte) ([]byte, error) { return r.replace(doc, mask) }

// Blank puts null in the place of hidden values. Errors are as in [Redaction.Mask].
func (r Redaction) Blank(doc []byte) ([]byte, error) {
	return r.replace(doc, func(json.RawMessage) string { return "null" })
}

// MaskAll is [Redaction.Mask] of every value that is no object and no array: the shape of doc
// remains, and its names.
func MaskAll(doc []byte) ([]byte, error) {
	w := rewriter{doc: doc, substitute: mask, leaves: true}
	return w.run(nil)
}

func (r Redaction) replace(doc []byte, substitute func(json.RawMessage) string) ([]byte, error) {
	if r.Empty() {
		return doc, nil
	}
	tree, err := decodeExact(doc)
	if err != nil {
		return nil, err
	}
	var hidden spots
	for _, path := range r.paths {
		for _, node := range path.SelectLocated(tree) {
			hidden.add(node.Path)
		}
	}
	w := rewriter{doc: doc, substitute: substitute}
	return w.run(&hidden)
}

// decodeExact keeps numbers as they are written: those of jsonb may be beyond any float64.
func decodeExact(doc []byte) (tree any, err error) {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	if err := dec.Decode(&tree); err != nil {
		return nil, errNotJSON
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errNotJSON
	}
	return tree, nil
}

// errNotJSON says nothing of the text: it may be what is to be hidden.
var errNotJSON = errors.New("the payload is not JSON")

// spots is a tree of places in a document. A nil one has none.
type spots struct {
	here  bool
	names map[string]*spots
	items map[int]*spots
}

func (s *spots) add(path spec.NormalizedPath) {
	for _, step := range path {
		switch step := step.(type) {
		case spec.Name:
			s = below(&s.names, string(step))
		case spec.Index:
			s = below(&s.items, int(step))
		}
	}
	s.here = true
}

func below[K comparable](children *map[K]*spots, key K) *spots {
	if *children == nil {
		*children = map[K]*spots{}
	}
	child := (*children)[key]
	if child == nil {
		child = &spots{}
		(*children)[key] = child
	}
	return child
}

func (s *spots) name(key string) *spots {
	if s == nil {
		return nil
	}
	return s.names[key]
}

func (s *spots) item(i int) *spots {
	if s == nil {
		return nil
	}
	return s.items[i]
}

// rewriter copies a document and replaces values on the way.
type rewriter struct {
	doc        []byte
	substitute func(json.RawMessage) string
	leaves     bool // replace every value that is neither object nor array

	dec    *json.Decoder
	out    bytes.Buffer
	copied int // how much of doc is in out, or replaced
}

func (w *rewriter) run(hidden *spots) ([]byte, error) {
	w.dec = json.NewDecoder(bytes.NewReader(w.doc))
	w.dec.UseNumber()
	if err := w.value(hidden); err != nil {
		return nil, err
	}
	if _, err := w.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errNotJSON
	}
	w.out.Write(w.doc[w.copied:])
	return w.out.Bytes(), nil
}

func (w *rewriter) value(hidden *spots) error {
	if hidden != nil && hidden.here || w.leaves && !w.opens() {
		return w.put()
	}
	token, err := w.dec.Token()
	if err != nil {
		return errNotJSON
	}
	switch token {
	case json.Delim('{'):
		return w.object(hidden)
	case json.Delim('['):
		return w.array(hidden)
	}
	return nil
}

// opens reports whether the next value is an object or an array.
func (w *rewriter) opens() bool {
	next := bytes.TrimLeft(w.doc[w.dec.InputOffset():], " \t\r\n:,")
	return len(next) > 0 && (next[0] == '{' || next[0] == '[')
}

func (w *rewriter) object(hidden *spots) error {
	seen := map[string]bool{}
	for w.dec.More() {
		token, err := w.dec.Token()
		if err != nil {
			return errNotJSON
		}
		name, _ := token.(string)
		if seen[name] { // the paths were looked up in one of the two
			return errors.New("the payload has a name twice in one object")
		}
		seen[name] = true
		if err := w.value(hidden.name(name)); err != nil {
			return err
		}
	}
	return w.end()
}

func (w *rewriter) array(hidden *spots) error {
	for i := 0; w.dec.More(); i++ {
		if err := w.value(hidden.item(i)); err != nil {
			return err
		}
	}
	return w.end()
}

func (w *rewriter) end() error {
	if _, err := w.dec.Token(); err != nil {
		return errNotJSON
	}
	return nil
}

// put writes the next value's substitute.
func (w *rewriter) put() error {
	var raw json.RawMessage
	if err := w.dec.Decode(&raw); err != nil {
		return errNotJSON
	}
	end := int(w.dec.InputOffset())
	w.out.Write(w.doc[w.copied : end-len(raw)])
	w.out.WriteString(w.substitute(raw))
	w.copied = end
	return nil
}

// mask says what a value is without saying which.
func mask(raw json.RawMessage) string {
	switch raw[0] {
	case 'n':
		return "null"
	case 't', 'f':
		return `"‹boolean›"`
	case '"':
		var s string
		_ = json.Unmarshal(raw, &s) // it has been read before
		return fmt.Sprintf(`"‹string, %d›"`, utf8.RuneCountInString(s))
	case '{':
		var members map[string]json.RawMessage
		_ = json.Unmarshal(raw, &members)
		return fmt.Sprintf(`"‹object, %d›"`, len(members))
	case '[':
		var elements []json.RawMessage
		_ = json.Unmarshal(raw, &elements)
		return fmt.Sprintf(`"‹array, %d›"`, len(elements))
	}
	digits := strings.Map(func(r rune) rune {
		if r < '0' || r > '9' {
			return -1
		}
		return r
	}, string(raw))
	return fmt.Sprintf(`"‹number, %d›"`, len(digits))
}
