package commands

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/outboxctl/outboxctl/migrate"
)

func newMigratePlan(a *app) *cobra.Command {
	var o lockOptions
	var with []string
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "show what migrate up would do, and who would have to wait",
		Long: `Show each migration that is missing and each index that migrate up would restore: what
it locks, how long it waits at most for others' locks, whether producers and
dispatchers go on meanwhile, and which dispatchers may run beside it afterwards. It
changes nothing.

Exit codes: 0 done, also when there is nothing to do; 1 runtime error; 2 usage error;
4 PostgreSQL cannot be reached or refuses us; 5 the schema is newer than this binary.`,
		Example: `  outboxctl migrate plan
  outboxctl migrate plan -o json | jq '.plan[] | select(.blocks_writers)'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.migratePlan(cmd.Context(), o, with) },
	}
	o.flags(cmd.Flags())
	withFlag(cmd.Flags(), &with)
	return cmd
}

func (a *app) migratePlan(ctx context.Context, o lockOptions, with []string) error {
	limits, err := o.limits()
	if err != nil {
		return err
	}
	return a.withSchema(ctx, func(s *migrate.Schema) error {
		s.Limit(limits)
		plan, err := s.Plan(ctx, with...)
		if err != nil {
			return upFailure(err)
		}
		if len(plan) > 0 && a.global.output == "table" {
			return a.printPlan(plan)
		}
		st, err := s.Status(ctx)
		if err != nil {
			return err
		}
		if a.global.output == "json" {
			doc := migrateDocument(st)
			doc.Plan = planJSON(plan)
			return a.printJSON(doc)
		}
		_, err = fmt.Fprintf(a.Out, "schema %s is up to date at version %d: nothing to do\n", a.global.schema, st.Current)
		return err
	})
}

func (a *app) printPlan(plan []migrate.Planned) error {
	var rows [][]string
	for _, p := range plan {
		version, name, dispatchers := "", "index "+p.Name, "any"
		if strings.HasPrefix(p.Name, "with ") {
			name = p.Name
		}
		if p.Version > 0 {
			version, name, dispatchers = strconv.Itoa(p.Version), p.Name, fmt.Sprintf("that know version %d", p.Oldest)
		}
		rows = append(rows, []string{version, name, lockNames(p), wait(p), atWork(p), dispatchers})
	}
	return a.printTable([]string{"VERSION", "NAME", "LOCKS", "WAITS AT MOST", "PRODUCERS", "DISPATCHERS AFTERWARDS"}, rows, 0)
}

func lockNames(p migrate.Planned) string {
	if len(p.Locks) == 0 {
		return "nothing that is there"
	}
	names := make([]string, len(p.Locks))
	for i, l := range p.Locks {
		names[i] = l.String()
	}
	return strings.Join(names, ", ")
}

func wait(p migrate.Planned) string {
	if p.Outside {
		return printDuration(p.Wait) + " for each older transaction"
	}
	return printDuration(p.Wait)
}

// atWork says what a migration means for producers, and for dispatchers at the same time.
func atWork(p migrate.Planned) string {
	if p.BlocksWriters() {
		return "wait up to " + printDuration(migrate.MaxLock) + " a try"
	}
	return "go on"
}

// plannedJSON is a step of the plan.
type plannedJSON struct {
	Version      *int       `json:"version"` // null = an index to restore, or an option
	Name         string     `json:"name"`
	Locks        []lockJSON `json:"locks"`
	Concurrently bool       `json:"concurrently"`
	Wait         float64    `json:"max_wait_seconds"`
	Blocks       bool       `json:"blocks_writers"`
	Oldest       *int       `json:"min_binary"` // null = any
}

type lockJSON struct {
	Table string `json:"table"`
	Mode  string `json:"mode"`
}

func planJSON(plan []migrate.Planned) []plannedJSON {
	list := []plannedJSON{}
	for _, p := range plan {
		step := plannedJSON{Name: p.Name, Locks: []lockJSON{}, Concurrently: p.Outside, Wait: p.Wait.Seconds(), Blocks: p.BlocksWriters()}
		if p.Version > 0 {
			step.Version, step.Oldest = &p.Version, &p.Oldest
		}
		for _, l := range p.Locks {
			step.Locks = append(step.Locks, lockJSON(l))
		}
		list = append(list, step)
	}
	return list
}
