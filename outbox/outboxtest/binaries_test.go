package outboxtest_test

import (
	"strings"
	"testing"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

func TestStartSaysWhatIsMissing(t *testing.T) {
	t.Setenv("OUTBOXCTL_TEST_PGBIN", t.TempDir())
	c, err := outboxtest.Start(outboxtest.Options{})
	if err == nil {
		c.Close()
		t.Fatal("started without binaries")
	}
	if !strings.Contains(err.Error(), "OUTBOXCTL_TEST_PGBIN") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%q does not name the setting in one line", err)
	}
}
