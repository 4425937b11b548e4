package outboxtest

import (
	"fmt"
	"strings"
)

// Standby makes a hot standby of the cluster, with the same options, and starts it.
func (c *Cluster) Standby() (*Cluster, error) {
	return start(c.opts, func(s *Cluster) error {
		// -R: it follows the cluster from here on.
		return s.runTool("pg_basebackup", "-d", c.URL("postgres"), "-D", s.data(), "-R", "-X", "stream", "-c", "fast")
	})
}

// Promote makes a standby a primary, and returns when it is one.
func (c *Cluster) Promote() error { return c.runTool("pg_ctl", "promote", "-w", "-D", c.data()) }

// runTool runs one of the server's programs to its end.
func (c *Cluster) runTool(name string, args ...string) error {
	out, err := c.command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
