package main_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/outboxctl/outboxctl"

// A layer says what the packages of some folders may import. Patterns: "x" is x alone, "x/*" is one
// level below it, "x/..." is x and everything below.
type layer struct {
	folder string
	ours   []string // folders of this module
	theirs []string // modules of others; nil means any but the terminal's
}

// layers is the drawing in docs/design.md as a table. The first row that matches a package
// counts; a package without a row is a new layer, which is a decision and not an accident.
var layers = []layer{
	{folder: "outbox", theirs: []string{"github.com/jackc/pgx/v5/...", "github.com/google/uuid", "github.com/theory/jsonpath/...", "golang.org/x/time/rate"}},
	{folder: "outbox/sink", ours: []string{"outbox", "outbox/sink/*"}},
	{folder: "outbox/sink/...", ours: []string{"outbox"}},
	{folder: "outbox/gate/...", ours: []string{"outbox"}},
	{folder: "outbox/metrics", ours: []string{"outbox"}},
	{folder: "outbox/wal", ours: []string{"outbox"}},
	{folder: "outbox/outboxtest/...", ours: []string{"outbox/...", "migrate"}},
	{folder: "migrate", theirs: []string{"github.com/jackc/pgx/v5/..."}},
	{folder: "commands", theirs: []string{"..."},
		ours: []string{"outbox", "outbox/sink/...", "outbox/gate", "outbox/metrics", "outbox/wal", "migrate"}},
	{folder: "cmd/outboxctl", ours: []string{"commands"}},
	{folder: "cmd/demo", ours: []string{"outbox/...", "migrate"}},
	{folder: "cmd/storm", ours: []string{"outbox/...", "migrate"}},
	{folder: "cmd/mutants", ours: []string{"outbox/...", "migrate"}},
}

// terminal lists what talks to people: commands alone does.
var terminal = []string{
	"github.com/spf13/...", "github.com/olekukonko/...", "github.com/schollz/progressbar/...",
}

// vague lists names that say nothing about what is inside.
var vague = []string{"internal", "pkg", "util", "utils", "common", "model", "models", "helper", "helpers", "lib", "misc"}

// topFolders lists the folders of the repository's root; those that start with a dot do not count.
var topFolders = []string{"bin", "cmd", "commands", "deploy", "dist", "docs", "migrate", "outbox", "testdata"}

func TestPackagesImportOnlyTheirLayers(t *testing.T) {
	t.Parallel()
	imports := readImports(t, "../..")
	if len(imports["outbox"]) == 0 {
		t.Fatal("no imports of outbox were read: the test looks in the wrong place")
	}
	for _, v := range violations(imports) {
		t.Error(v)
	}
}

func TestRootHoldsOnlyKnownFolders(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && !slices.Contains(topFolders, e.Name()) {
			t.Errorf("folder %s is none of %v", e.Name(), topFolders)
		}
	}
}

func TestViolations(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		folder string
		path   string
		want   string
	}{
		{"the core imports the driver", "outbox", "github.com/jackc/pgx/v5/pgxpool", ""},
		{"the core imports the standard library", "outbox", "encoding/json", ""},
		{"the core imports another module", "outbox", "github.com/twmb/franz-go/pkg/kgo",
			"outbox imports github.com/twmb/franz-go/pkg/kgo"},
		{"a module whose name only begins alike", "outbox", "github.com/jackc/pgx/v5extra",
			"outbox imports github.com/jackc/pgx/v5extra"},
		{"the core imports a sink", "outbox", module + "/outbox/sink/webhook",
			"outbox imports outbox/sink/webhook"},
		{"the core imports the schema", "outbox", module + "/migrate", "outbox imports migrate"},
		{"the schema imports the core", "migrate", module + "/outbox", "migrate imports outbox"},
		{"the scheme table imports a sink", "outbox/sink", module + "/outbox/sink/kafka", ""},
		{"a sink imports another", "outbox/sink/kafka", module + "/outbox/sink/nats",
			"outbox/sink/kafka imports outbox/sink/nats"},
		{"a sink imports a gate", "outbox/sink/kafka", module + "/outbox/gate",
			"outbox/sink/kafka imports outbox/gate"},
		{"a gate imports a sink", "outbox/gate", module + "/outbox/sink", "outbox/gate imports outbox/sink"},
		{"a sink imports its client", "outbox/sink/kafka", "github.com/twmb/franz-go/pkg/kgo", ""},
		{"a sink draws a progress bar", "outbox/sink/file", "github.com/schollz/progressbar/v3",
			"outbox/sink/file imports github.com/schollz/progressbar/v3"},
		{"commands reads flags", "commands", "github.com/spf13/pflag", ""},
		{"commands uses the test cluster", "commands", module + "/outbox/outboxtest",
			"commands imports outbox/outboxtest"},
		{"main bypasses commands", "cmd/outboxctl", module + "/outbox", "cmd/outboxctl imports outbox"},
		{"the demo uses the test cluster", "cmd/demo", module + "/outbox/outboxtest", ""},
		{"the demo reads flags with cobra", "cmd/demo", "github.com/spf13/cobra",
			"cmd/demo imports github.com/spf13/cobra"},
		{"a new layer", "billing", "fmt", "billing is in no layer"},
		{"a vague name", "outbox/sink/util", "fmt", "outbox/sink/util: util says nothing about what is inside"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := strings.Join(violations(map[string][]string{tt.folder: {tt.path}}), "\n")
			if got != tt.want {
				t.Errorf("violations() = %q, want %q", got, tt.want)
			}
		})
	}
}

// violations lists what in the imports of each folder breaks the rules.
func violations(imports map[string][]string) []string {
	var found []string
	for folder, paths := range imports {
		for name := range strings.SplitSeq(folder, "/") {
			if slices.Contains(vague, name) {
				found = append(found, fmt.Sprintf("%s: %s says nothing about what is inside", folder, name))
			}
		}
		i := slices.IndexFunc(layers, func(l layer) bool { return matches(l.folder, folder) })
		if i < 0 {
			found = append(found, folder+" is in no layer")
			continue
		}
		for _, p := range paths {
			if !layers[i].allows(p) {
				found = append(found, fmt.Sprintf("%s imports %s", folder, strings.TrimPrefix(p, module+"/")))
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// allows reports whether a package of the layer may import path.
func (l layer) allows(importPath string) bool {
	if folder, ok := strings.CutPrefix(importPath, module+"/"); ok {
		return anyMatches(l.ours, folder)
	}
	host, _, _ := strings.Cut(importPath, "/")
	switch {
	case !strings.Contains(host, "."): // the standard library's paths have no host
		return true
	case l.theirs == nil:
		return !anyMatches(terminal, importPath)
	default:
		return anyMatches(l.theirs, importPath)
	}
}

func anyMatches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, name) })
}

// matches compares a slash-separated name with a pattern of a layer.
func matches(pattern, name string) bool {
	if pattern == "..." {
		return true
	}
	if below, ok := strings.CutSuffix(pattern, "/..."); ok {
		return name == below || strings.HasPrefix(name, below+"/")
	}
	ok, _ := path.Match(pattern, name)
	return ok
}

// readImports maps each folder with Go files to what its non-test files import, whatever system
// they are for. Tests may import what they like.
func readImports(t *testing.T, root string) map[string][]string {
	t.Helper()
	imports := map[string][]string{}
	for _, file := range goFiles(t, root) {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		paths, err := importsOf(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		imports[path.Dir(file)] = append(imports[path.Dir(file)], paths...)
	}
	return imports
}

// goFiles lists the Go files below root, relative to it and with slashes.
func goFiles(t *testing.T, root string) []string {
	t.Helper()
	var files []string
	err := fs.WalkDir(os.DirFS(root), ".", func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && file != "." && ignored(d.Name()):
			return fs.SkipDir
		case !d.IsDir() && strings.HasSuffix(file, ".go"):
			files = append(files, file)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// ignored reports whether the go command passes over a folder of this name.
func ignored(name string) bool {
	return name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_")
}

func importsOf(file string) ([]string, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, spec := range parsed.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		paths = append(paths, p)
	}
	return paths, nil
}
