package commands

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/migrate"
)

// downOptions are the flags of migrate down.
type downOptions struct {
	lockOptions
	to      int
	destroy bool
}

func newMigrateDown(a *app) *cobra.Command {
	var o downOptions
	cmd := &cobra.Command{
		Use:   "down --to VERSION",
		Short: "take the newest migrations back",
		Long: `Take the newest migrations back until the schema is at a version, each in a
transaction of its own: before you go back to an older outboxctl that cannot work with
the schema of now, or to take the outbox away (version 0). Stop the dispatchers first.

Tables that a migration made go with it. While they hold rows it refuses and says how
many; --destroy-data agrees to lose them, and is asked about once more, unless --yes
is given.

Exit codes: 0 done; 1 runtime error, or others' locks did not go away; 2 usage error;
4 PostgreSQL cannot be reached or refuses us; 5 the schema is newer than this binary;
6 declined, or --destroy-data or --yes needed.`,
		Example: `  outboxctl migrate down --to 8
  outboxctl migrate down --to 0 --destroy-data --yes`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), a, cmd.Flags().Changed("to"))
		},
	}
	o.flags(cmd.Flags())
	return cmd
}

func (o *downOptions) flags(fs *pflag.FlagSet) {
	o.lockOptions.flags(fs)
	fs.IntVar(&o.to, "to", 0, "`version` to go back to")
	fs.BoolVar(&o.destroy, "destroy-data", false, "agree to lose the rows of the tables that go")
	typed(fs, "to", "destroy-data")
}

func (o *downOptions) run(ctx context.Context, a *app, given bool) error {
	limits, err := o.limits()
	switch {
	case err != nil:
		return err
	case !given:
		return usage(errors.New("--to is missing: give the version to go back to"), "run: outboxctl migrate status"+a.schemaFlag())
	case o.to < 0 || o.to > migrate.Latest:
		return usage(fmt.Errorf("--to %d: want 0 to %d", o.to, migrate.Latest), "")
	}
	return a.withSchema(ctx, func(s *migrate.Schema) error {
		s.Limit(limits)
		consent, err := o.consent(ctx, a, s)
		if err != nil {
			return err
		}
		did := "nothing to do"
		for n, err := range s.Down(ctx, o.to, consent) {
			if errors.Is(err, migrate.ErrData) {
				return &failure{exitDeclined, err, "they came meanwhile: stop producers and dispatchers, and run it again"}
			}
			if err != nil {
				return err
			}
			a.sayNews(n)
			if n.What == migrate.Reverted {
				did = "done"
			}
		}
		return a.printSchema(ctx, s, did, nil)
	})
}

// consent names what would be lost and asks whether it may; without a loss it need not.
func (o *downOptions) consent(ctx context.Context, a *app, s *migrate.Schema) (bool, error) {
	losses, err := s.Losses(ctx, o.to)
	if err != nil || len(losses) == 0 {
		return false, err
	}
	names := make([]string, len(losses))
	for i, l := range losses {
		names[i] = fmt.Sprintf("%s (%s)", l.Table, lossCount(l))
	}
	what := fmt.Sprintf("migrate down --to %d destroys data: %s", o.to, strings.Join(names, ", "))
	if !o.destroy {
		return false, &failure{exitDeclined, errors.New(what), "if it may go, add --destroy-data"}
	}
	fmt.Fprintln(a.Err, what)
	return true, a.confirm(ctx, "destroy it?")
}

func lossCount(l migrate.Loss) string {
	if l.More {
		return "more than " + counted(l.Rows, "row")
	}
	return counted(l.Rows, "row")
}

// confirm asks a question that only a yes answers. Where nobody can be asked, --yes is needed.
func (a *app) confirm(ctx context.Context, question string) error {
	switch {
	case a.global.yes:
		return nil
	case !terminal(a.In):
		return &failure{exitDeclined, errors.New("nobody is there to ask: --yes is needed"), ""}
	}
	fmt.Fprintf(a.Err, "%s Type yes: ", question)
	answer := make(chan string, 1)
	go func() { // a read from a terminal cannot be cut off; it ends with the process
		line, _ := bufio.NewReader(a.In).ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case line := <-answer:
		if line == "yes" {
			return nil
		}
		return &failure{exitDeclined, errors.New("declined"), ""}
	}
}
