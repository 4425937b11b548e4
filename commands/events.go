package commands

import "github.com/spf13/cobra"

func newEvents(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events",
		Short: "look at single events and mend what cannot be delivered",
		Long: `The desk for single events: find them, see what became of them and why, change what a
receiver refuses, and give up what nobody needs.`,
		Example: `  outboxctl events list --status dead_letter`,
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newEventsList(a), newEventsShow(a), newEventsExplain(a), newEventsEdit(a), newEventsDiscard(a))
	return cmd
}
