package commands

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/lmittmann/tint"
	"github.com/olekukonko/tablewriter"
	"github.com/olekukonko/tablewriter/renderer"
	"github.com/olekukonko/tablewriter/tw"
	"github.com/spf13/cobra"
)

// outputsMark is the annotation of a command that knows more formats than table and json.
const outputsMark = "formats of results"

// outputs says which formats a command knows besides table and json.
func outputs(cmd *cobra.Command, more ...string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[outputsMark] = strings.Join(more, " ")
}

func outputsOf(cmd *cobra.Command) []string {
	return append([]string{"table", "json"}, strings.Fields(cmd.Annotations[outputsMark])...)
}

// oneOf lists words for a choice: table, json or csv.
func oneOf(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// printJSON writes one document; its keys are an interface, unlike the tables.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(escaping{a.Out})
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printJSONLines writes one document a line.
func printJSONLines[T any](a *app, documents []T) error {
	enc := json.NewEncoder(escaping{a.Out})
	enc.SetEscapeHTML(false)
	for _, doc := range documents {
		if err := enc.Encode(doc); err != nil {
			return err
		}
	}
	return nil
}

// escaping writes JSON whose strings hold nothing that a terminal acts on: Go leaves control
// characters beyond ASCII, and those that turn the direction of text, as they are. Only strings can
// hold them.
type escaping struct{ io.Writer }

func (w escaping) Write(text []byte) (int, error) {
	var safe bytes.Buffer
	for _, r := range string(text) { // which is UTF-8, of whole documents
		switch {
		case r == '\n' || unicode.IsPrint(r):
			safe.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&safe, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&safe, `\u%04x`, r)
		}
	}
	_, err := w.Writer.Write(safe.Bytes())
	return len(text), err
}

// printCSV writes rows for spreadsheets, with a line of names above (RFC 4180, but for the line's
// end). Their values come from producers and receivers, and a spreadsheet computes what looks like a
// formula: see csvCell.
func (a *app) printCSV(head []string, rows [][]string) error {
	w := csv.NewWriter(a.Out)
	if err := w.Write(head); err != nil {
		return err
	}
	for _, row := range rows {
		safe := make([]string, len(row))
		for i, value := range row {
			safe[i] = csvCell(value)
		}
		if err := w.Write(safe); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}

// csvCell is a value that a spreadsheet takes for text, or for the number that it is: ' before what
// would begin a formula. Control characters are replaced as in a table.
func csvCell(value string) string {
	text := cell(value)
	if text == "" || !strings.ContainsRune("=+-@＝＋－＠", []rune(text)[0]) {
		return text
	}
	if strings.ContainsRune("+-", rune(text[0])) && strings.Trim(text[1:], "0123456789.") == "" { // -5, +491234567
		return text
	}
	return "'" + text
}

// printTable writes rows for eyes: see cell. Columns whose index is in right are numbers.
func (a *app) printTable(head []string, rows [][]string, right ...int) error {
	align := make([]tw.Align, len(head))
	for i := range align {
		align[i] = tw.AlignLeft
	}
	for _, i := range right {
		align[i] = tw.AlignRight
	}
	var text bytes.Buffer
	table := tablewriter.NewTable(&text,
		tablewriter.WithRenderer(renderer.NewBlueprint(tw.Rendition{
			Borders: tw.BorderNone,
			Settings: tw.Settings{
				Separators: tw.Separators{BetweenColumns: tw.Off, BetweenRows: tw.Off},
				Lines:      tw.LinesNone,
			},
		})),
		tablewriter.WithHeaderAutoFormat(tw.Off),
		tablewriter.WithHeaderAutoWrap(tw.WrapNone),
		tablewriter.WithRowAutoWrap(tw.WrapNone),
		tablewriter.WithHeaderAlignmentConfig(tw.CellAlignment{PerColumn: align}),
		tablewriter.WithRowAlignmentConfig(tw.CellAlignment{PerColumn: align}),
		tablewriter.WithPadding(tw.Padding{Left: "", Right: "  ", Overwrite: true}),
		tablewriter.WithTrimSpace(tw.Off),
	)
	table.Header(head)
	safe := make([][]string, len(rows))
	for i, row := range rows {
		for _, value := range row {
			safe[i] = append(safe[i], cell(value))
		}
	}
	if err := table.Bulk(safe); err != nil {
		return fmt.Errorf("table: %w", err)
	}
	if err := table.Render(); err != nil {
		return fmt.Errorf("table: %w", err)
	}
	return a.printTrimmed(text.String())
}

// printTrimmed writes lines without the blanks at their ends, which make a mess of a copied table.
func (a *app) printTrimmed(text string) error {
	for line := range strings.Lines(text) {
		if _, err := fmt.Fprintln(a.Out, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// logger writes to w, which leads to stderr: coloured text on a terminal, key=value text elsewhere,
// or JSON.
func (a *app) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(a.global.logLevel)) // checked by globalRules
	switch {
	case a.global.logFormat == "json":
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: inMilliseconds}))
	case terminal(a.Err) || a.global.color == "always":
		return slog.New(tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: "15:04:05.000", NoColor: !a.colored()}))
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// inMilliseconds gives durations in JSON a unit: latency becomes latency_ms.
func inMilliseconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() != slog.KindDuration {
		return a
	}
	return slog.Float64(a.Key+"_ms", float64(a.Value.Duration().Microseconds())/1000)
}

// colored reports whether stderr takes colours.
func (a *app) colored() bool {
	switch a.global.color {
	case "always":
		return true
	case "never":
		return false
	}
	return a.Getenv("NO_COLOR") == "" && a.Getenv("TERM") != "dumb" && terminal(a.Err)
}

// cell shows a value from the database in a table's cell: on one line, without what moves a cursor.
func cell(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '·'
	}, s)
}

// printable reports whether a terminal shows s as it is.
func printable(s string) bool { return utf8.ValidString(s) && cell(s) == s }

// oneLine folds an error's text, so that one error is one line, and nothing in it moves a cursor.
func oneLine(s string) string { return cell(strings.Join(strings.Fields(s), " ")) }

// age prints a duration the way a person says it: 4s, 3m12s, 5h02m, 12d4h.
func age(d time.Duration) string {
	d = d.Round(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

// thousands prints a count with separators: 1,234,567.
func thousands(n int64) string {
	s := fmt.Sprint(n)
	start := len(s) % 3
	var parts []string
	if start > 0 {
		parts = append(parts, s[:start])
	}
	for i := start; i < len(s); i += 3 {
		parts = append(parts, s[i:i+3])
	}
	return strings.Join(parts, ",")
}

// counted prints a count with its noun: 1 event, 2 events.
func counted(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return thousands(n) + " " + noun + "s"
}

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "print the version of this binary",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.global.output == "json" {
				return a.printJSON(versionDocument{"outboxctl.version/v1", a.version(), a.Build.Commit, a.Build.Date})
			}
			_, err := fmt.Fprintln(a.Out, "outboxctl", a.version())
			return err
		},
	}
}

// versionDocument is outboxctl.version/v1.
type versionDocument struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Date    string `json:"date"`
}
