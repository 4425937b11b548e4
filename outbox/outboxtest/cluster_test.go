package outboxtest_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

// TestMain turns this test binary into a process that owns a cluster, for the tests that kill one.
func TestMain(m *testing.M) {
	if os.Getenv("OUTBOXTEST_OWNER") != "" {
		own()
	}
	os.Exit(m.Run())
}

// own starts a cluster, says where it is, and waits to be killed.
func own() {
	c, err := outboxtest.Start(outboxtest.Options{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(c.LogFile())
	fmt.Println(c.URL("postgres"))
	select {}
}

func start(t *testing.T, opts outboxtest.Options) *outboxtest.Cluster {
	t.Helper()
	c, err := outboxtest.Start(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// ask runs a query of one value on a connection of its own.
func ask(url, sql string) (value string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx, sql).Scan(&value)
	return value, err
}

func TestClusterComesBackWithItsData(t *testing.T) {
	t.Parallel()
	c := start(t, outboxtest.Options{})
	url := c.URL("postgres")
	if _, err := ask(url, `with made as (select pg_create_physical_replication_slot('kept')) select count(*)::text from made`); err != nil {
		t.Fatal(err)
	}
	ends := map[string]func() error{
		"fast":      func() error { return c.Stop("fast") },
		"immediate": func() error { return c.Stop("immediate") },
		"kill":      c.Kill,
		"running":   func() error { return nil },
	}
	for name, end := range ends {
		if err := end(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := ask(url, `select ''`); err == nil && name != "running" {
			t.Errorf("%s: the server still answers", name)
		}
		if err := c.Restart(); err != nil {
			t.Fatalf("restart after %s: %v", name, err)
		}
		if got, err := ask(url, `select slot_name::text from pg_replication_slots`); err != nil || got != "kept" {
			t.Errorf("after %s: %q, %v", name, got, err)
		}
	}
	if err := c.Stop("smartly"); err == nil {
		t.Error("an unknown mode stopped it")
	}
}

func TestClusterTakesItsOptions(t *testing.T) {
	t.Parallel()
	c := start(t, outboxtest.Options{Password: "it's", Fsync: true, Settings: []string{"max_connections = 17"}})
	for setting, want := range map[string]string{"fsync": "on", "max_connections": "17"} {
		if got, err := ask(c.URL("postgres"), "show "+setting); err != nil || got != want {
			t.Errorf("%s = %q, %v, want %q", setting, got, err, want)
		}
	}
	if _, err := ask(strings.Replace(c.URL("postgres"), "it%27s", "wrong", 1), `select ''`); err == nil {
		t.Error("a wrong password was let in")
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	c := start(t, outboxtest.Options{})
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Dir(c.LogFile())); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
}

// Who keeps only the URL still has a cluster.
func TestClusterSurvivesGarbageCollection(t *testing.T) {
	t.Parallel()
	c, err := outboxtest.Start(outboxtest.Options{}) // closed by the process's end
	if err != nil {
		t.Fatal(err)
	}
	url := c.URL("postgres")
	for range 3 {
		runtime.GC()
	}
	if _, err := ask(url, `select ''`); err != nil {
		t.Error(err)
	}
}

// A process that is killed with -9 cannot clean up, so something else must.
func TestClusterEndsWithItsKilledOwner(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "OUTBOXTEST_OWNER=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	dir := filepath.Dir(lines.Text())
	lines.Scan()
	url := lines.Text()
	if _, err := ask(url, `select ''`); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	deadline := time.Now().Add(20 * time.Second)
	for {
		_, asked := ask(url, `select ''`)
		_, stat := os.Stat(dir)
		if asked != nil && os.IsNotExist(stat) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("outlived its owner: the server says %v, its folder %v", asked, stat)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
