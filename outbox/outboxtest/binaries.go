package outboxtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// errNoBinaries is the one line for a machine without PostgreSQL.
var errNoBinaries = errors.New("no PostgreSQL server binaries found: install them " +
	"(apt-get install postgresql, dnf install postgresql-server, brew install postgresql@17), " +
	"or set OUTBOXCTL_TEST_PGBIN to their folder or OUTBOXCTL_TEST_DATABASE_URL to a running server")

// usualFolders is where packages put the server's binaries, outside PATH.
var usualFolders = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/lib/postgresql*/bin",
	"/usr/libexec/postgresql*",
	"/usr/pgsql-*/bin",
	"/usr/local/pgsql/bin",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
	"/opt/local/lib/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// binaries returns the folder of initdb and postgres.
func binaries() (string, error) {
	if dir := os.Getenv("OUTBOXCTL_TEST_PGBIN"); dir != "" {
		if !complete(dir) {
			return "", fmt.Errorf("OUTBOXCTL_TEST_PGBIN: no initdb and postgres in %s", dir)
		}
		return dir, nil
	}
	if path, err := exec.LookPath("initdb"); err == nil && complete(filepath.Dir(path)) {
		return filepath.Dir(path), nil
	}
	for _, pattern := range usualFolders {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		if dir := newest(slices.DeleteFunc(dirs, func(dir string) bool { return !complete(dir) })); dir != "" {
			return dir, nil
		}
	}
	return "", errNoBinaries
}

// complete reports whether a folder has what starting a cluster takes.
func complete(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

var versions = regexp.MustCompile(`\d+(\.\d+)?`)

// newest returns the folder with the highest version in its name, "" when there is none.
func newest(dirs []string) string {
	if len(dirs) == 0 {
		return ""
	}
	version := func(dir string) float64 {
		v, _ := strconv.ParseFloat(versions.FindString(dir), 64) // no number: 0, the unversioned one
		return v
	}
	return slices.MaxFunc(dirs, func(a, b string) int {
		switch va, vb := version(a), version(b); {
		case va < vb:
			return -1
		case va > vb:
			return 1
		}
		return 0
	})
}
