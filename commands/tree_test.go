package commands_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/commands"
)

// runnable are the program's commands that do something, by their path without the program's name:
// "events list". Cobra's own are not ours.
func runnable() map[string]*cobra.Command {
	all := map[string]*cobra.Command{}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			if name := sub.Name(); cmd.HasParent() || name != "help" && name != "completion" {
				walk(sub)
			}
		}
		_, path, _ := strings.Cut(cmd.CommandPath(), " ")
		if group := cmd.Name() == "events" || cmd.Name() == "config"; path != "" && cmd.Runnable() && !group {
			all[path] = cmd
		}
	}
	walk(commands.Tree())
	return all
}

// flagsOf are the flags that a command takes, global ones included.
func flagsOf(cmd *cobra.Command) (all []*pflag.Flag) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { all = append(all, f) })
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { all = append(all, f) })
	return all
}

// everyCommand fails unless a table has a row for each command, and none for another.
func everyCommand[V any](t *testing.T, table map[string]V) {
	t.Helper()
	known := runnable()
	for path := range known {
		if _, ok := table[path]; !ok {
			t.Errorf("outboxctl %s is in no row of the table: decide what holds for it", path)
		}
	}
	for path := range table {
		if known[path] == nil {
			t.Errorf("there is no outboxctl %s", path)
		}
	}
}

// sorted are the keys of a map in order, so that a test does the same each time.
func sorted[V any](m map[string]V) []string {
	var keys []string
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
