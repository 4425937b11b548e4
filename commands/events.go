package commands

import "github.com/spf13/cobra"

func newEvents(*app) *cobra.Command {
	return &cobra.Command{
		Use:   "events",
		Short: "look at single events and mend what cannot be delivered",
		Long: `The desk for single events: find them, see what became of them and why, change what a
receiver refuses, and give up what nobody needs.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
}
