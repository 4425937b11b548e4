package commands

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/outboxctl/outboxctl/outbox"
)

// specKeys are the keys of a specification, in the order in which it is written.
var specKeys = []string{"table", "source", "key", "time_column", "event_type", "aggregate_type", "aggregate_id", "tenant",
	"schema_version", "destination", "headers", "payload", "payload_column", "existing"}

// readSpec reads a specification from a file of YAML or JSON. All mistakes in it are one error, each
// with its line. Nothing is replaced in its values. Who only looks need not say what events hold.
func readSpec(path string, looks bool) (spec outbox.BackfillSpec, err error) {
	text, err := readConfigFile(path)
	if err != nil {
		return spec, usage(fmt.Errorf("--spec: %w", err), "")
	}
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) { // JSON may have tabs between its tokens
		text = bytes.ReplaceAll(text, []byte("\t"), []byte(" "))
	}
	r := specReader{newConfigReader(path, text, nil)}
	if root := r.parse(text); root != nil {
		r.showAll(root)
		r.read(root, &spec, looks)
	} else if len(r.mistakes) == 0 {
		r.mistake(1, 1, "the file is empty")
	}
	if len(r.mistakes) > 0 {
		r.sort()
		return spec, r.failure()
	}
	return spec, nil
}

// specReader reads the nodes of a specification.
type specReader struct{ *configReader }

// showAll says that there are no secrets.
func (r specReader) showAll(n *yaml.Node) {
	r.source.public[n] = true
	for _, child := range n.Content {
		r.showAll(child)
	}
}

func (r specReader) read(root *yaml.Node, spec *outbox.BackfillSpec, looks bool) {
	there := map[string]bool{}
	for _, pair := range r.pairs(root, "the file") {
		there[pair.name] = true
		r.readKey(pair, spec)
	}
	for _, name := range []string{"table", "event_type", "aggregate_type", "aggregate_id"} {
		if !there[name] {
			r.complain(root, "%s is missing", name)
		}
	}
	if payload, column := there["payload"], there["payload_column"]; payload && column || !payload && !column && !looks {
		r.complain(root, "give payload or payload_column, one of the two")
	}
}

func (r specReader) readKey(pair configPair, spec *outbox.BackfillSpec) {
	value := pair.value
	switch pair.name {
	case "table":
		name := r.scalar(value, pair.name)
		schema, table, err := parseTable(name)
		if err != nil && name != "" {
			r.complain(value, "table: %q: %s", name, err)
		}
		spec.Schema, spec.Table = schema, table
	case "source":
		spec.Source = r.scalar(value, pair.name)
	case "key":
		spec.Key = r.list(value, pair.name)
	case "time_column":
		spec.TimeColumn = r.scalar(value, pair.name)
	case "event_type":
		spec.EventType = r.field(value, pair.name)
	case "aggregate_type":
		spec.AggregateType = r.field(value, pair.name)
	case "aggregate_id":
		if resolved(value).Kind == yaml.ScalarNode {
			r.complain(value, "aggregate_id: write {column: NAME}, or {value: TEXT} for the same in all events")
			return
		}
		spec.AggregateID = r.field(value, pair.name)
	case "tenant":
		spec.Tenant = r.field(value, pair.name)
	case "schema_version":
		spec.SchemaVersion = r.field(value, pair.name)
		if v := spec.SchemaVersion.Value; v != "" && !isVersion(v) {
			r.complain(value, "schema_version: %q is not a whole number above 0", v)
		}
	case "destination":
		spec.Destination = r.field(value, pair.name)
		spec.Destination.Value = typedDestination(spec.Destination.Value)
	case "headers":
		spec.Headers = map[string]outbox.Field{}
		for _, header := range r.pairs(value, "headers") {
			spec.Headers[header.name] = r.field(header.value, header.name)
		}
	case "payload":
		r.payload(value, spec)
	case "payload_column":
		spec.PayloadColumn = r.scalar(value, pair.name)
	case "existing":
		spec.Existing = outbox.Existing(r.scalar(value, pair.name))
		if err := checkExisting(spec.Existing); err != nil {
			r.complain(value, "existing: %s", err)
		}
	default:
		hint := "it can be " + strings.Join(specKeys, ", ")
		if near := nearest(pair.name, specKeys); near != "" {
			hint = "did you mean " + near + "?"
		}
		r.complain(pair.key, "there is no %s in a specification; %s", pair.name, hint)
	}
}

// scalar returns a single text that is not empty.
func (r specReader) scalar(n *yaml.Node, name string) string {
	n = resolved(n)
	switch {
	case n.Kind != yaml.ScalarNode:
		r.complain(n, "%s takes one value", name)
	case n.Tag == "!!null" || n.Value == "":
		r.complain(n, "%s has no value", name)
	case strings.ContainsRune(n.Value, 0):
		r.complain(n, "%s has a NUL in it", name)
	default:
		return n.Value
	}
	return ""
}

func (r specReader) list(n *yaml.Node, name string) (all []string) {
	for _, item := range r.items(n) {
		text := r.scalar(item, name)
		if slices.Contains(all, text) && text != "" {
			r.complain(item, "%s: %s is there twice", name, text)
		}
		all = append(all, text)
	}
	return all
}

// field is {column: NAME}, {value: TEXT}, or TEXT alone for the same.
func (r specReader) field(n *yaml.Node, name string) (f outbox.Field) {
	if resolved(n).Kind == yaml.ScalarNode {
		f.Value = r.scalar(n, name)
		return f
	}
	pairs := r.pairs(n, name)
	if len(pairs) != 1 {
		r.complain(n, "%s: want {column: NAME} or {value: TEXT}", name)
		return f
	}
	switch pair := pairs[0]; pair.name {
	case "column":
		f.Column = r.scalar(pair.value, name)
	case "value":
		f.Value = r.scalar(pair.value, name)
	default:
		r.complain(pair.key, "%s: want {column: NAME} or {value: TEXT}", name)
	}
	return f
}

// payload is a list of columns, a mapping of names to columns, or * for all columns.
func (r specReader) payload(n *yaml.Node, spec *outbox.BackfillSpec) {
	switch resolved(n).Kind {
	case yaml.MappingNode:
		for _, pair := range r.pairs(n, "payload") {
			spec.Payload = append(spec.Payload, outbox.PayloadField{Name: pair.name, Column: r.scalar(pair.value, "payload")})
		}
	case yaml.SequenceNode:
		for _, column := range r.list(n, "payload") {
			spec.Payload = append(spec.Payload, outbox.PayloadField{Name: column, Column: column})
		}
	default:
		if r.scalar(n, "payload") != "*" {
			r.complain(n, `payload: want a list of columns, a mapping of names to columns, or "*"`)
		}
		spec.PayloadAll = true
	}
}

func isVersion(text string) bool {
	n, err := strconv.ParseInt(text, 10, 32)
	return err == nil && n > 0
}

func checkExisting(e outbox.Existing) error {
	switch e {
	case "", outbox.SameAggregate, outbox.SameKey:
		return nil
	}
	return fmt.Errorf("%q: want aggregate or key", string(e))
}
