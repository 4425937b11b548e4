package commands

import (
	"encoding/csv"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/outboxctl/outboxctl/outbox"
)

// shellWord quotes text for a command that a person pastes into a shell.
func shellWord(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,+@"
	switch {
	case s != "" && strings.Trim(s, plain) == "":
		return s
	case printable(s):
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return escapedWord(s)
}

// escapedWord writes what a terminal would act on as $'\033', which bash, zsh and the shells of
// POSIX.1-2024 read as what it was.
func escapedWord(s string) string {
	var word strings.Builder
	for s != "" {
		_, size := utf8.DecodeRuneInString(s)
		char := s[:size]
		switch s = s[size:]; {
		case char == "'" || char == `\`:
			word.WriteString(`\` + char)
		case printable(char):
			word.WriteString(char)
		default:
			for _, b := range []byte(char) {
				fmt.Fprintf(&word, `\%03o`, b)
			}
		}
	}
	return "$'" + word.String() + "'"
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
