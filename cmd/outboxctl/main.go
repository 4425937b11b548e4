// Command outboxctl runs a transactional outbox on PostgreSQL.
package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/outboxctl/outboxctl/commands"
)

// Set by the linker; see .goreleaser.yaml.
var (
	version = "dev"
	commit  = ""
	date    = ""
)

func main() {
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	os.Exit(commands.Main(commands.Process{
		Args:    os.Args[1:],
		In:      os.Stdin,
		Out:     os.Stdout,
		Err:     os.Stderr,
		Getenv:  os.Getenv,
		Signals: signals,
		Build:   commands.Build{Version: version, Commit: commit, Date: date},
	}))
}
