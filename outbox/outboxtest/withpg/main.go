// Withpg runs a command with OUTBOXCTL_TEST_DATABASE_URL set to a throw-away PostgreSQL, so that
// the packages of one test run share a server:
//
//	go run ./outbox/outboxtest/withpg go test ./...
//
// It ends with the command and with its exit code. Where the variable is set already, it just runs
// the command.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

const variable = "OUTBOXCTL_TEST_DATABASE_URL"

func main() { os.Exit(run(os.Args[1:])) }

func run(command []string) int {
	if len(command) == 0 {
		fmt.Fprintln(os.Stderr, "usage: withpg COMMAND [ARGUMENT...]")
		return 2
	}
	// From here on a signal is the command's; the cluster ends after it.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)

	if os.Getenv(variable) == "" {
		cluster, err := outboxtest.Start(outboxtest.Options{})
		if err != nil {
			fmt.Fprintln(os.Stderr, "withpg:", err)
			return 1
		}
		defer cluster.Close()
		os.Setenv(variable, cluster.URL("postgres"))
	}
	return exitCode(follow(command, signals))
}

// follow runs the command and passes signals on to it.
func follow(command []string, signals <-chan os.Signal) error {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error)
	go func() { done <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			cmd.Process.Signal(s) // one that has just ended needs none
		case err := <-done:
			return err
		}
	}
}

// exitCode is the command's, 128 and the signal's number when one ended it, as in a shell.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		fmt.Fprintln(os.Stderr, "withpg:", err)
		return 127
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}
