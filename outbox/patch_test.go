package outbox_test

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/outboxctl/outboxctl/outbox"
)

func TestAssign(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		doc     string
		pointer string
		value   string // "" takes it away
		want    string // begins with ! for an error
	}{
		{"replace", `{"a": 1}`, "/a", `2`, `{"a":2}`},
		{"add", `{"a": 1}`, "/b", `{"c": "<&>"}`, `{"a":1,"b":{"c":"<&>"}}`},
		{"deep", `{"a": {"b": [1, {"c": 2}]}}`, "/a/b/1/c", `3`, `{"a":{"b":[1,{"c":3}]}}`},
		{"take away", `{"a": 1, "b": 2}`, "/a", ``, `{"b":2}`},
		{"an element", `[1, 2, 3]`, "/1", ``, `[1,3]`},
		{"the end", `[1]`, "/-", `2`, `[1,2]`},
		{"just behind the end", `[1]`, "/1", `2`, `[1,2]`},
		{"the whole", `{"a": 1}`, "", `[]`, `[]`},
		{"an empty name", `{"": 1}`, "/", `2`, `{"":2}`},
		{"escapes", `{"a/b": 1, "m~n": 2, "~1": 3}`, "/~01", `4`, `{"a/b":1,"m~n":2,"~1":4}`},
		{"digits", `{"a": 12345678901234567890.10, "b": 1e400}`, "/c", `0.10`, `{"a":12345678901234567890.10,"b":1e400,"c":0.10}`},
		{"no parent", `{"a": 1}`, "/b/c", `1`, `!"/b/c": there is no "b"`},
		{"nothing to take away", `{"a": 1}`, "/b", ``, `!"/b": there is no "b"`},
		{"below a value", `{"a": 1}`, "/a/b", `1`, `!"/a/b": there is no "b": what should hold it is neither an object nor an array`},
		{"beyond the end", `[1]`, "/2", `1`, `!"/2": there is no element 2: there are 1`},
		{"the end taken away", `[1]`, "/-", ``, `!"/-": there is no element -: there are 1`},
		{"no number", `[1]`, "/01", `1`, `!"/01": "01" is not the number of an element`},
		{"negative", `[1]`, "/-1", `1`, `!"/-1": "-1" is not the number of an element`},
		{"a stray tilde", `{}`, "/~2", `1`, `!"/~2": ~ is written ~0, and / in a name ~1`},
		{"no slash", `{}`, "a", `1`, `!"a": a place in a document begins with /, as in /customer/email`},
		{"all taken away", `{}`, "", ``, `!"": the whole document cannot be taken away`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			as := outbox.Assignment{Pointer: tt.pointer}
			if tt.value != "" {
				as.Value = []byte(tt.value)
			}
			got, err := outbox.Assign([]byte(tt.doc), []outbox.Assignment{as})
			text := string(got)
			if err != nil {
				text = "!" + err.Error()
			}
			if text != tt.want {
				t.Errorf("Assign(%s, %q) = %s, want %s", tt.doc, tt.pointer, text, tt.want)
			}
		})
	}
}

func TestPatch(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, before, after, want string }{
		{"the same", `{"a": 1, "b": [1.0]}`, `{"b":[1.0],"a":1}`, `null`},
		{"a digit", `1.0`, `1.00`, `[{"op":"replace","path":"","value":1.00}]`},
		{"members", `{"a": 1, "b": 2}`, `{"b": 3, "c": null}`,
			`[{"op":"remove","path":"/a"},{"op":"replace","path":"/b","value":3},{"op":"add","path":"/c","value":null}]`},
		{"another kind", `{"a": {}}`, `{"a": []}`, `[{"op":"replace","path":"/a","value":[]}]`},
		{"elements taken away", `[1, 2, 3, 4, 5]`, `[1, 5]`, `[{"op":"remove","path":"/3"},{"op":"remove","path":"/2"},{"op":"remove","path":"/1"}]`},
		{"elements put between", `[1, 4]`, `[1, 2, 3, 4]`, `[{"op":"add","path":"/1","value":2},{"op":"add","path":"/2","value":3}]`},
		{"names", `{"a/b": {"m~n": 1}}`, `{"a/b": {"m~n": "<"}}`, `[{"op":"replace","path":"/a~1b/m~0n","value":"<"}]`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			steps, err := outbox.Patch([]byte(tt.before), []byte(tt.after))
			if err != nil {
				t.Fatal(err)
			}
			if got := mustJSON(t, steps); got != mustJSON(t, json.RawMessage(tt.want)) {
				t.Errorf("Patch(%s, %s) = %s, want %s", tt.before, tt.after, got, tt.want)
			}
		})
	}
}

// Whoever applies a patch of any two documents to the first has the second.
func TestPatchLeadsFromOneToTheOther(t *testing.T) {
	t.Parallel()
	document := rapid.Deferred(func() *rapid.Generator[any] { return anyDocument(3) })
	rapid.Check(t, func(t *rapid.T) {
		before, _ := json.Marshal(document.Draw(t, "before"))
		after, _ := json.Marshal(document.Draw(t, "after"))
		steps, err := outbox.Patch(before, after)
		if err != nil {
			t.Fatal(err)
		}
		for _, step := range steps {
			if step.Op == "add" {
				before = insertAt(t, before, step)
				continue
			}
			if before, err = outbox.Assign(before, []outbox.Assignment{{Pointer: step.Path, Value: step.Value}}); err != nil {
				t.Fatalf("%+v: %v", steps, err)
			}
		}
		var got, want any
		_, _ = json.Unmarshal(before, &got), json.Unmarshal(after, &want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("after %+v (-want +got):\n%s", steps, diff)
		}
	})
}

func anyDocument(depth int) *rapid.Generator[any] {
	leaf := rapid.OneOf(rapid.Map(rapid.IntRange(0, 3), func(n int) any { return float64(n) }), rapid.Just[any](nil), rapid.Just[any]("x"))
	if depth == 0 {
		return leaf
	}
	names := rapid.SampledFrom([]string{"a", "b", "c/d", "~", ""})
	return rapid.OneOf(leaf,
		rapid.Map(rapid.MapOfN(names, anyDocument(depth-1), 0, 4), func(m map[string]any) any { return m }),
		rapid.Map(rapid.SliceOfN(anyDocument(depth-1), 0, 5), func(s []any) any { return s }))
}

// insertAt applies an add as RFC 6902 has it: into an array, what is there moves on.
func insertAt(t *rapid.T, doc []byte, step outbox.PatchStep) []byte {
	cut := strings.LastIndexByte(step.Path, '/')
	parent, last := step.Path[:cut], step.Path[cut+1:]
	var tree any
	_ = json.Unmarshal(doc, &tree)
	node := tree
	if parent != "" {
		for name := range strings.SplitSeq(parent[1:], "/") {
			name = strings.NewReplacer("~1", "/", "~0", "~").Replace(name)
			switch at := node.(type) {
			case map[string]any:
				node = at[name]
			case []any:
				i, _ := strconv.Atoi(name)
				node = at[i]
			}
		}
	}
	array, isArray := node.([]any)
	if !isArray {
		changed, err := outbox.Assign(doc, []outbox.Assignment{{Pointer: step.Path, Value: step.Value}})
		if err != nil {
			t.Fatal(err)
		}
		return changed
	}
	i, err := strconv.Atoi(last)
	if err != nil || i > len(array) {
		t.Fatalf("add %s to %d elements", step.Path, len(array))
	}
	var value any
	_ = json.Unmarshal(step.Value, &value)
	whole, _ := json.Marshal(slices.Insert(slices.Clone(array), i, value))
	changed, err := outbox.Assign(doc, []outbox.Assignment{{Pointer: parent, Value: whole}})
	if err != nil {
		t.Fatal(err)
	}
	return changed
}
