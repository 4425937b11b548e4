package main_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// exposure is what `systemd-analyze security` may find at most, in tenths.
const exposure = "15"

// TestUnitsAreSoundAndHardened has systemd read the units, and judge what a service may do.
func TestUnitsAreSoundAndHardened(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Fatal("no systemd-analyze found: install it (apt-get install systemd)")
	}
	units, err := filepath.Glob("../../deploy/systemd/*")
	if err != nil || len(units) < 3 {
		t.Fatalf("%d units were found, %v", len(units), err)
	}
	dir := t.TempDir()
	var copies []string
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^Exec\w+=/usr/local/bin/outboxctl (.*)$`).FindAllStringSubmatch(string(text), -1) {
			if code, _, words := run(t, "", append(strings.Fields(m[1]), "--help")...); code != 0 {
				t.Errorf("%s: outboxctl %s: exit code %d: %s", unit, m[1], code, words)
			}
		}
		file := filepath.Join(dir, filepath.Base(unit)) // where the binary need not be installed
		text = []byte(strings.ReplaceAll(string(text), "/usr/local/bin/outboxctl", "/bin/true"))
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		copies = append(copies, file)
		if strings.HasSuffix(unit, ".service") {
			analyze(t, "security", "--offline=true", "--threshold="+exposure, file)
		}
	}
	analyze(t, append([]string{"verify"}, copies...)...)
}

func analyze(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.Command("systemd-analyze", append(args, "--no-pager")...).CombinedOutput()
	if err != nil || args[0] == "verify" && strings.Contains(string(out), "outboxctl") { // and not about the machine's own
		t.Errorf("systemd-analyze %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// TestCrashIsNotTakenForAMistakeInTheSettings ends a dispatcher as systemd's watchdog does. Under the
// unit's environment that is a signal, which has it started again, and not the exit code of a usage
// error, which does not.
func TestCrashIsNotTakenForAMistakeInTheSettings(t *testing.T) {
	t.Parallel()
	unit, err := os.ReadFile("../../deploy/systemd/outboxctl-dispatch.service")
	if err != nil {
		t.Fatal(err)
	}
	traceback := regexp.MustCompile(`(?m)^Environment=(GOTRACEBACK=.*)$`).FindStringSubmatch(string(unit))
	if traceback == nil || !strings.Contains(string(unit), "\nRestartPreventExitStatus=2\n") || !strings.Contains(string(unit), "\nLimitCORE=0\n") {
		t.Fatal("the unit has changed: see whether it still starts a crashed dispatcher again")
	}
	file, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	d := startFile(t, "/bin/sh", []string{traceback[1]}, "-c", `ulimit -c 0; exec "$@"`, "sh", file,
		"dispatch", "--to", "stdout:", "--database-url", "postgres://127.0.0.1:1/nowhere")
	d.says("waiting for PostgreSQL")
	d.signal(syscall.SIGABRT)
	d.wait(patience)
	if status := d.cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || !strings.Contains(d.err.String(), "goroutine 1 ") {
		t.Errorf("it ends with %s, want a dump and a signal", d.cmd.ProcessState)
	}
}
