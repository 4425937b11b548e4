package commands_test

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/outboxctl/outboxctl/commands"
)

// exampleConfig writes the file of docs/destinations.md and runs a command on it.
func exampleConfig(t *testing.T, args ...string) (code int, out, words string) {
	t.Helper()
	page, err := os.ReadFile("../docs/destinations.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(page)
	if example == nil {
		t.Fatal("docs/destinations.md has no example")
	}
	folder := t.TempDir()
	cert, key := certificate(t)
	for name, text := range map[string]string{
		"outboxctl.yaml": string(example[1]), "mail.secret": "a-secret-of-more-than-24-bytes\n",
		"mail-ca.pem": cert, "mail-client.pem": cert, "mail-client-key.pem": key,
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var stdout, stderr bytes.Buffer
	code = commands.Main(commands.Process{
		Args: append(args, "--config", filepath.Join(folder, "outboxctl.yaml")), In: strings.NewReader(""), Out: &stdout, Err: &stderr,
		Signals: make(chan os.Signal),
		Getenv: func(name string) string {
			return map[string]string{"DATABASE_URL": "postgres://127.0.0.1:1/shop", "CRM_SECRET": "a-secret-of-more-than-24-bytes"}[name]
		},
	})
	return code, stdout.String(), stderr.String()
}

// certificate is that of Go's test servers, and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	private, err := x509.MarshalPKCS8PrivateKey(s.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return block("CERTIFICATE", s.Certificate().Raw), block("PRIVATE KEY", private)
}

func TestExampleOfDestinationsIsGood(t *testing.T) {
	t.Parallel()
	code, out, words := exampleConfig(t, "config", "check")
	if code != 0 || !strings.Contains(out, "5 settings, 4 destinations, 6 routes, no mistakes") {
		t.Errorf("config check of the example: exit %d, %s%s", code, out, words)
	}
}

// The page has every setting of a destination, and its default.
func TestDestinationsPageHasEverySetting(t *testing.T) {
	t.Parallel()
	code, out, words := exampleConfig(t, "config", "show", "-o", "json")
	if code != 0 {
		t.Fatalf("config show: exit %d, %s", code, words)
	}
	var doc struct {
		Settings []struct {
			Name, Origin string
			Value        any
		}
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"url": "", "headers": "", "tenants.overrides": ""}
	for _, s := range doc.Settings {
		name, ok := strings.CutPrefix(s.Name, "destinations.graveyard.")
		if !ok || name == "url" {
			continue
		}
		want[name] = fmt.Sprint(s.Value)
		if want[name] == "[]" {
			want[name] = ""
		}
	}
	page, err := os.ReadFile("../docs/destinations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Settings of a destination\n")
	section, _, _ = strings.Cut(section, "\n## ")
	got := map[string]string{}
	for _, row := range readmeRows(section) {
		if row[0] != "setting" {
			got[strings.Trim(row[0], "`")] = strings.Trim(row[1], "`")
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("settings in docs/destinations.md = %q\nwant %q", got, want)
	}
}
