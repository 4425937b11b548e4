package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// Assignment gives one place in a JSON document a value, or takes it away.
type Assignment struct {
	Pointer string // RFC 6901: /customer/email, /items/0, /items/- for the end, "" for the whole
	Value   []byte // JSON; nil takes it away
}

// Assign makes assignments in a document, one after the other. Numbers keep all their digits. The
// errors name the place and never a value.
func Assign(doc []byte, assignments []Assignment) ([]byte, error) {
	tree, err := decodeExact(doc)
	if err != nil {
		return nil, err
	}
	for _, a := range assignments {
		steps, err := pointerSteps(a.Pointer)
		if err == nil {
			tree, err = a.in(tree, steps)
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", a.Pointer, err)
		}
	}
	return encodeExact(tree)
}

func encodeExact(tree any) ([]byte, error) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	err := enc.Encode(tree)
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), err
}

// pointerSteps reads a JSON pointer (RFC 6901).
func pointerSteps(pointer string) ([]string, error) {
	if pointer == "" {
		return nil, nil
	}
	if pointer[0] != '/' {
		return nil, errors.New("a place in a document begins with /, as in /customer/email")
	}
	steps := strings.Split(pointer[1:], "/")
	for i, step := range steps {
		if strings.Contains(strings.NewReplacer("~0", "", "~1", "").Replace(step), "~") {
			return nil, errors.New("~ is written ~0, and / in a name ~1")
		}
		steps[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(step)
	}
	return steps, nil
}

// in returns the node with the assignment made below it.
func (a Assignment) in(node any, steps []string) (any, error) {
	if len(steps) == 0 {
		if a.Value == nil {
			return nil, errors.New("the whole document cannot be taken away")
		}
		return decodeExact(a.Value)
	}
	switch node := node.(type) {
	case map[string]any:
		return a.inObject(node, steps)
	case []any:
		return a.inArray(node, steps)
	}
	return nil, fmt.Errorf("there is no %q: what should hold it is neither an object nor an array", steps[0])
}

func (a Assignment) inObject(object map[string]any, steps []string) (any, error) {
	child, there := object[steps[0]]
	switch last := len(steps) == 1; {
	case !there && (!last || a.Value == nil):
		return nil, fmt.Errorf("there is no %q", steps[0])
	case last && a.Value == nil:
		delete(object, steps[0])
		return object, nil
	}
	value, err := a.in(child, steps[1:])
	if err == nil {
		object[steps[0]] = value
	}
	return object, err
}

func (a Assignment) inArray(array []any, steps []string) (any, error) {
	last := len(steps) == 1
	i, err := strconv.Atoi(steps[0])
	if steps[0] == "-" {
		i, err = len(array), nil
	}
	switch {
	case err != nil || i < 0 || steps[0] != "-" && strconv.Itoa(i) != steps[0]:
		return nil, fmt.Errorf("%q is not the number of an element", steps[0])
	case i == len(array) && last && a.Value != nil:
		array = append(array, nil)
	case i >= len(array):
		return nil, fmt.Errorf("there is no element %s: there are %d", steps[0], len(array))
	case last && a.Value == nil:
		return slices.Delete(array, i, i+1), nil
	}
	array[i], err = a.in(array[i], steps[1:])
	return array, err
}

// PatchStep is an operation of a JSON patch (RFC 6902).
type PatchStep struct {
	Op    string          `json:"op"` // add, remove or replace
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value,omitempty"`
}

// Patch returns the steps that make one document of another: none if they say the same. A number is
// another one when a digit of it differs.
func Patch(before, after []byte) ([]PatchStep, error) {
	from, err := decodeExact(before)
	if err != nil {
		return nil, err
	}
	to, err := decodeExact(after)
	if err != nil {
		return nil, err
	}
	var p patch
	err = p.values("", from, to)
	return p.steps, err
}

type patch struct{ steps []PatchStep }

func (p *patch) add(op, path string, value any) error {
	step := PatchStep{Op: op, Path: path}
	if op == "remove" {
		p.steps = append(p.steps, step)
		return nil
	}
	var err error
	step.Value, err = encodeExact(value)
	p.steps = append(p.steps, step)
	return err
}

func (p *patch) values(path string, from, to any) error {
	if reflect.DeepEqual(from, to) {
		return nil
	}
	switch from := from.(type) {
	case map[string]any:
		if to, ok := to.(map[string]any); ok {
			return p.objects(path, from, to)
		}
	case []any:
		if to, ok := to.([]any); ok {
			return p.arrays(path, from, to)
		}
	}
	return p.add("replace", path, to)
}

func (p *patch) objects(path string, from, to map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(from)) {
		if _, stays := to[name]; !stays {
			_ = p.add("remove", pointerTo(path, name), nil) // without a value
		}
	}
	for _, name := range slices.Sorted(maps.Keys(to)) {
		var err error
		if old, was := from[name]; was {
			err = p.values(pointerTo(path, name), old, to[name])
		} else {
			err = p.add("add", pointerTo(path, name), to[name])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// arrays changes the elements between those that are the same at the start and at the end. The
// numbers of elements with a value are those of the document after.
func (p *patch) arrays(path string, from, to []any) error {
	start, end := 0, 0
	for start < min(len(from), len(to)) && reflect.DeepEqual(from[start], to[start]) {
		start++
	}
	for end < min(len(from), len(to))-start && reflect.DeepEqual(from[len(from)-1-end], to[len(to)-1-end]) {
		end++
	}
	both := min(len(from), len(to)) - end
	for i := len(from) - end - 1; i >= both; i-- {
		_ = p.add("remove", pointerTo(path, strconv.Itoa(i)), nil) // without a value
	}
	for i := start; i < len(to)-end; i++ {
		var err error
		if at := pointerTo(path, strconv.Itoa(i)); i < both {
			err = p.values(at, from[i], to[i])
		} else {
			err = p.add("add", at, to[i])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pointerTo is the pointer to a member or an element.
func pointerTo(path, name string) string {
	return path + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}
