package commands

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newConfig(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "check the settings and show where they come from",
		Long: `Look at the settings without using them. A setting is a flag, a variable in the
environment or a line in the file that --config names, in this order, or has a default.

The file is YAML: the flags' names with _ for -; destinations and routes; and redact, a
list of JSON paths to hide in what is shown of payloads. ${NAME} in a value is replaced
by that variable, and ${NAME:-text} has a default.
` + exitCodes,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigCheck(a), newConfigShow(a))
	return cmd
}

func newConfigCheck(a *app) *cobra.Command {
	return &cobra.Command{
		Annotations: map[string]string{wholeFileMark: "true"},

		Use:   "check",
		Short: "look for mistakes in the configuration file",
		Long: `Read the file that --config names and say all that is wrong with it, line by line:
settings that do not exist or are there twice, values of the wrong kind or without sense,
variables that are not set. It connects to nothing. Exit code 0 if the file is good, 2 if not.
`,
		Example: "  outboxctl config check --config outboxctl.yaml",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.file == nil {
				return usage(errNoConfig, "")
			}
			if a.global.output == "json" {
				return a.printJSON(configCheckDocument{"outboxctl.config_check/v1", a.file.path, a.file.count(), len(a.file.destinations), len(a.file.routes)})
			}
			words := counted(int64(a.file.count()), "setting")
			if len(a.file.destinations) > 0 {
				words += ", " + counted(int64(len(a.file.destinations)), "destination") + ", " + counted(int64(len(a.file.routes)), "route")
			}
			_, err := fmt.Fprintf(a.Out, "%s: %s, no mistakes\n", a.file.path, words)
			return err
		},
	}
}

var errNoConfig = errors.New("--config is missing: give the file to look at (or set OUTBOXCTL_CONFIG)")

// configCheckDocument is outboxctl.config_check/v1.
type configCheckDocument struct {
	Schema       string `json:"schema"`
	File         string `json:"file"`
	Settings     int    `json:"settings"` // besides the two
	Destinations int    `json:"destinations"`
	Routes       int    `json:"routes"`
}

func newConfigShow(a *app) *cobra.Command {
	var origin bool
	cmd := &cobra.Command{
		Annotations: map[string]string{wholeFileMark: "true"},

		Use:   "show",
		Short: "show every setting",
		Long: `Show the value of every setting as it is now, with flags, environment and file taken
together; with --origin also where each comes from. Of a secret it shows that it is set.
` + exitCodes,
		Example: `  outboxctl config show --origin
  outboxctl config show --config outboxctl.yaml -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, err := a.settings(cmd)
			if err != nil {
				return err
			}
			return a.printSettings(settings, origin)
		},
	}
	cmd.Flags().BoolVar(&origin, "origin", false, "show where each value comes from: a flag, a variable, a line of the file")
	return cmd
}

// shownSetting is a setting as people and programs see it.
type shownSetting struct {
	Name   string `json:"name"`
	Value  any    `json:"value"`
	Origin string `json:"origin"` // a flag, a variable, a line of the file, or default
}

const secretIsSet = "set"

// settings gathers those of all commands: the global ones and dispatch's, and of the others what is
// not their default.
func (a *app) settings(cmd *cobra.Command) ([]shownSetting, error) {
	var all []shownSetting
	add := func(flags *pflag.FlagSet, defaults bool) {
		flags.VisitAll(func(f *pflag.Flag) {
			known := slices.ContainsFunc(all, func(s shownSetting) bool { return s.Name == fileKey(f.Name) })
			if !known && f.Name != "help" && !selects(f) && f.Annotations[leftMark] == nil && (defaults || originOf(f) != "") {
				all = append(all, showFlag(f))
			}
		})
	}
	add(cmd.InheritedFlags(), true)
	var bad error
	eachCommand(newRoot(&app{Process: a.Process}), func(other *cobra.Command) {
		own := other.LocalNonPersistentFlags()
		if other.Parent().Name() == cmd.Parent().Name() || bad != nil {
			return
		}
		bad = cmp.Or(a.leaveToFile(own), fillFromEnvironment(own, a.Getenv), a.file.fill(own))
		add(own, other.Name() == "dispatch")
	})
	all = append(all, a.fileSettings()...)
	slices.SortStableFunc(all, func(x, y shownSetting) int { return cmp.Compare(x.Name, y.Name) })
	return all, bad
}

// fileSettings are those that have no flags.
func (a *app) fileSettings() (all []shownSetting) {
	if a.file == nil || len(a.file.destinations) == 0 {
		all = a.secretSettings()
	}
	if a.file == nil {
		return all
	}
	if a.file.redacted.line > 0 {
		all = append(all, shownSetting{"redact", a.file.redacted.texts, a.file.at(&a.file.redacted)})
	}
	for _, d := range a.file.destinations {
		all = append(all, d.shownSettings(a.file)...)
	}
	for i, route := range a.file.routes {
		all = append(all, route.shownSettings(fmt.Sprintf("routes.%d.", i+1), a.file)...)
	}
	return all
}

// secretSettings are the signing secrets, which have no flag.
func (a *app) secretSettings() (all []shownSetting) {
	for _, s := range []struct {
		name      string
		variables []string
	}{{"secret", []string{"OUTBOXCTL_SECRET", "HMAC_SECRET"}}, {"secret_old", []string{"OUTBOXCTL_SECRET_OLD"}}} {
		setting := shownSetting{s.name, "", "default"}
		for _, variable := range slices.Backward(s.variables) {
			if a.Getenv(variable) != "" {
				setting.Value, setting.Origin = secretIsSet, variable
			}
		}
		all = append(all, setting)
	}
	return all
}

func showFlag(f *pflag.Flag) shownSetting {
	s := shownSetting{fileKey(f.Name), typedValue(f.Value), cmp.Or(originOf(f), "default")}
	switch {
	case secretFlags[f.Name] && f.Value.String() != "":
		s.Value = secretIsSet
	case f.Name == "to":
		s.Value = shownURL(f.Value.String())
	}
	return s
}

// typedValue is a flag's value for JSON: numbers, truth and lists as such, all else as text.
func typedValue(v pflag.Value) any {
	text := v.String()
	if list, ok := v.(pflag.SliceValue); ok {
		return append([]string{}, list.GetSlice()...)
	}
	switch v.Type() {
	case "int":
		if n, err := strconv.Atoi(text); err == nil {
			return n
		}
	case "float64":
		if n, err := strconv.ParseFloat(text, 64); err == nil {
			return n
		}
	case "bool":
		return text == "true"
	}
	return text
}

// configDocument is outboxctl.config/v1. Its keys are an interface: they stay.
type configDocument struct {
	Schema   string         `json:"schema"`
	File     string         `json:"file"` // "" without one
	Settings []shownSetting `json:"settings"`
}

func (a *app) printSettings(settings []shownSetting, origin bool) error {
	if a.global.output == "json" {
		return a.printJSON(configDocument{"outboxctl.config/v1", a.global.config, settings})
	}
	head := []string{"SETTING", "VALUE"}
	if origin {
		head = append(head, "ORIGIN")
	}
	var rows [][]string
	for _, s := range settings {
		row := []string{s.Name, cmp.Or(cell(shownValue(s.Value)), "-")}
		if origin {
			row = append(row, cell(s.Origin))
		}
		rows = append(rows, row)
	}
	return a.printTable(head, rows)
}

// shownValue is a value in a table's cell.
func shownValue(value any) string {
	if list, ok := value.([]string); ok {
		return strings.Join(list, ", ")
	}
	return fmt.Sprint(value)
}

// shownURL is a URL without what may be secret in it: user, password, query.
func shownURL(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return secretIsSet
	}
	if u.User != nil {
		u.User = url.User("…")
	}
	if u.RawQuery != "" {
		u.RawQuery = "…"
	}
	u.Fragment, u.RawFragment = "", ""
	shown, err := url.PathUnescape(u.String())
	if err != nil {
		return secretIsSet
	}
	return shown
}
