package commands

import (
	"encoding/csv"
	"fmt"
	"strings"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

// shellWord quotes text for a command that a person pastes into a shell.
func shellWord(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,+@"
	if s != "" && strings.Trim(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// listed writes values as flags that take lists separated by commas.
func listed[T any](flag string, values []T) string {
	var words strings.Builder
	for _, v := range values {
		var field strings.Builder
		w := csv.NewWriter(&field)
		_ = w.Write([]string{fmt.Sprint(v)}) // into memory
		w.Flush()
		words.WriteString(" --" + flag + " " + shellWord(strings.TrimSuffix(field.String(), "\n")))
	}
	return words.String()
}

// command is a filter as flags, with its times resolved but for --older-than.
func (o *filterOptions) command(f outbox.Filter) string {
	var words strings.Builder
	words.WriteString(listed("id", f.IDs) + listed("key", f.Keys) + listed("status", f.Statuses) + listed("event-type", f.EventTypes))
	for _, a := range f.Aggregates {
		words.WriteString(" --aggregate " + shellWord(aggregateName(a.Type, a.ID)))
	}
	words.WriteString(listed("tenant", f.Tenants) + listed("destination", destinationNames(f.Destinations)))
	if !f.Since.IsZero() {
		words.WriteString(" --since " + f.Since.Format(time.RFC3339Nano))
	}
	if !f.Until.IsZero() {
		words.WriteString(" --until " + f.Until.Format(time.RFC3339Nano))
	}
	if o.olderThan > 0 {
		words.WriteString(" --older-than " + o.olderThan.String())
	}
	words.WriteString(listed("error-kind", f.ErrorKinds) + listed("error-code", f.ErrorCodes))
	return words.String()
}
