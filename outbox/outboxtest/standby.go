package outboxtest

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Standby makes a hot standby of the cluster, with the same options, and starts it.
func (c *Cluster) Standby() (*Cluster, error) {
	return start(c.opts, func(s *Cluster) error {
		// -R: it follows the cluster from here on.
		return s.runTool("pg_basebackup", "-d", c.URL("postgres"), "-D", s.data(), "-R", "-X", "stream", "-c", "fast", "--no-sync")
	})
}

// Promote makes a standby a primary, and returns when it is one.
func (c *Cluster) Promote() error { return c.runTool("pg_ctl", "promote", "-w", "-D", c.data()) }

// runTool runs one of the programs beside the server's to its end. Where somebody has linked the
// server's to another folder, the others are where the links lead.
func (c *Cluster) runTool(name string, args ...string) error {
	cmd := c.command(name, args...)
	if server, err := filepath.EvalSymlinks(filepath.Join(c.bin, "postgres")); err == nil {
		cmd.Path = filepath.Join(filepath.Dir(server), name)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
