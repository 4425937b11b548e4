package outbox_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/outboxctl/outboxctl/outbox"
)

func redaction(t testing.TB, paths ...string) outbox.Redaction {
	t.Helper()
	r, err := outbox.NewRedaction(paths...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestMaskHidesWhatThePathsName(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		paths []string
		doc   string
		want  string
	}{
		{"a name", []string{"$.email"}, `{"id": 7, "email": "jo@example.com"}`, `{"id": 7, "email": "‹string, 14›"}`},
		{"all below a name", []string{"$.card.*"}, `{"card": {"no": 42424242, "ok": true, "exp": null, "in": [1, 2], "by": {"a": 1}}}`,
			`{"card": {"no": "‹number, 8›", "ok": "‹boolean›", "exp": null, "in": "‹array, 2›", "by": "‹object, 1›"}}`},
		{"of every element", []string{"$.items[*].email"}, `{"items": [{"email": "a"}, {"n": 1}, {"email": "bc"}]}`,
			`{"items": [{"email": "‹string, 1›"}, {"n": 1}, {"email": "‹string, 2›"}]}`},
		{"at any depth", []string{"$..token"}, `{"token": "x", "a": [{"b": {"token": {"token": 1}}}]}`,
			`{"token": "‹string, 1›", "a": [{"b": {"token": "‹object, 1›"}}]}`},
		{"a name with a dot", []string{"$['na.me']"}, `{"na.me": "x", "na": {"me": "y"}}`, `{"na.me": "‹string, 1›", "na": {"me": "y"}}`},
		{"an escaped name", []string{"$.ä"}, `{"\u00e4": "x"}`, `{"\u00e4": "‹string, 1›"}`},
		{"an element", []string{"$[1]", "$[-1]"}, `[1, 2, 3]`, `[1, "‹number, 1›", "‹number, 1›"]`},
		{"all", []string{"$"}, ` {"a": 1} `, ` "‹object, 1›" `},
		{"two paths that meet", []string{"$.a", "$.a.b"}, `{"a": {"b": 1}, "c": 2}`, `{"a": "‹object, 1›", "c": 2}`},
		{"nothing there", []string{"$.email"}, `{"mail": "<a&b>"}`, `{"mail": "<a&b>"}`},
		{"no path", nil, `{"a": 1}`, `{"a": 1}`},
		{"what stays is untouched", []string{"$.x"}, "{\"z\" :1e999,\"a\": 0.10000000000000000000001 , \"x\":-1.50e3,\n\"h\": \"<&>\\u2028\" }",
			"{\"z\" :1e999,\"a\": 0.10000000000000000000001 , \"x\":\"‹number, 4›\",\n\"h\": \"<&>\\u2028\" }"},
		{"characters, not bytes", []string{"$.x"}, `{"x": "žluť\u00fd"}`, `{"x": "‹string, 5›"}`},
		{"a filter", []string{"$[?@.kind == 'mail'].to"}, `[{"kind": "mail", "to": "a"}, {"kind": "sms", "to": "b"}]`,
			`[{"kind": "mail", "to": "‹string, 1›"}, {"kind": "sms", "to": "b"}]`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := redaction(t, tt.paths...).Mask([]byte(tt.doc))
			if err != nil || string(got) != tt.want {
				t.Errorf("Mask(%s) = %s, %v\nwant %s", tt.doc, got, err, tt.want)
			}
		})
	}
}

func TestMaskAllLeavesTheShape(t *testing.T) {
	t.Parallel()
	doc := `{"a": [1, "two", [], {}, {"b": [null, true]}], "c": {"d": -0.5}}`
	want := `{"a": ["‹number, 1›", "‹string, 3›", [], {}, {"b": [null, "‹boolean›"]}], "c": {"d": "‹number, 2›"}}`
	if got, err := outbox.MaskAll([]byte(doc)); err != nil || string(got) != want {
		t.Errorf("MaskAll(%s) = %s, %v\nwant %s", doc, got, err, want)
	}
	if got, err := outbox.MaskAll([]byte(`"x"`)); err != nil || string(got) != `"‹string, 1›"` {
		t.Errorf("MaskAll of a string = %s, %v", got, err)
	}
}

func TestBlankLeavesNull(t *testing.T) {
	t.Parallel()
	got, err := redaction(t, "$.email", "$.card").Blank([]byte(`{"id": 7, "email": "jo@example.com", "card": {"no": 1}}`))
	if want := `{"id": 7, "email": null, "card": null}`; err != nil || string(got) != want {
		t.Errorf("Blank() = %s, %v, want %s", got, err, want)
	}
}

func TestMaskShowsNothingOfWhatItCannotJudge(t *testing.T) {
	t.Parallel()
	for _, doc := range []string{``, `{`, `secret`, `{"a": 1} secret`, `{"a": "secret}`, `[1 "secret"]`, `{"a": {"b": "secret"}, "a": 1}`} {
		for name, f := range map[string]func([]byte) ([]byte, error){"Mask": redaction(t, "$.a.b").Mask, "MaskAll": outbox.MaskAll} {
			got, err := f([]byte(doc))
			if err == nil || got != nil || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s(%s) = %s, %v, want an error that does not repeat it", name, doc, got, err)
			}
		}
	}
}

func TestNewRedactionNamesTheBadPath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"email":           `"email" is not a JSON path: it begins with $`,
		"":                `"" is not a JSON path: it begins with $`,
		"$.":              `"$." is not a JSON path: unexpected end at position 3`,
		"$.first-name":    `"$.first-name" is not a JSON path: invalid number literal at position 8; names with other characters`,
		"$.items[*]email": `"$.items[*]email" is not a JSON path: unexpected identifier at position 11`,
	} {
		r, err := outbox.NewRedaction("$.ok", path)
		if err == nil || !strings.HasPrefix(err.Error(), want) || !r.Empty() {
			t.Errorf("NewRedaction(%q) = %v, %v, want %q", path, r, err, want)
		}
	}
}

// FuzzMask compares with a redaction of the decoded document, by hand.
func FuzzMask(f *testing.F) {
	for _, doc := range []string{`{"a": {"x": 1, "token": []}, "token": "t"}`, `[{"token": null}, 1e400]`, `{"a": 1}`, `"x"`, `{"token": {"a": {"b": 1}}}`, `{"a":[1],"a":2}`} {
		f.Add([]byte(doc))
	}
	r := redaction(f, "$..token", "$.a.*")
	f.Fuzz(func(t *testing.T, doc []byte) {
		for name, hide := range map[string]func([]byte) ([]byte, error){"Mask": r.Mask, "MaskAll": outbox.MaskAll} {
			got, err := hide(doc)
			if err != nil {
				continue
			}
			var before, after any
			if !json.Valid(doc) || !exact(doc, &before) || !exact(got, &after) {
				t.Fatalf("%s(%q) = %q", name, doc, got)
			}
			want := maskByHand(before, 0, name == "MaskAll")
			if !reflect.DeepEqual(after, want) {
				t.Errorf("%s(%s) = %s, want %v", name, doc, got, want)
			}
		}
	})
}

func exact(doc []byte, tree *any) bool {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	return dec.Decode(tree) == nil
}

func maskByHand(value any, depth int, leaves bool) any {
	switch v := value.(type) {
	case map[string]any:
		for name, child := range v {
			switch {
			case !leaves && name == "token":
				v[name] = masked(child)
			default:
				v[name] = maskByHand(child, depth+1, leaves)
			}
		}
		if a, ok := v["a"]; ok && depth == 0 && !leaves {
			switch a := a.(type) {
			case map[string]any:
				for name, child := range a {
					if name != "token" {
						a[name] = masked(child)
					}
				}
			case []any:
				for i, child := range a {
					a[i] = masked(child)
				}
			}
		}
		return v
	case []any:
		for i, child := range v {
			v[i] = maskByHand(child, depth+1, leaves)
		}
		return v
	}
	if leaves {
		return masked(value)
	}
	return value
}

func masked(value any) any {
	text, _ := json.Marshal(value)
	switch v := value.(type) {
	case nil:
		return nil
	case bool:
		return "‹boolean›"
	case string:
		return "‹string, " + count(utf8.RuneCountInString(v)) + "›"
	case json.Number:
		return "‹number, " + count(len(strings.Trim(strings.NewReplacer("-", "", "+", "", ".", "", "e", "", "E", "").Replace(v.String()), " "))) + "›"
	case map[string]any:
		return "‹object, " + count(len(v)) + "›"
	case []any:
		return "‹array, " + count(len(v)) + "›"
	}
	return string(text)
}

func count(n int) string {
	text, _ := json.Marshal(n)
	return string(text)
}
