package outbox

import (
	"regexp"
	"slices"
	"strings"
)

// placeholders take the place of what differs between two errors with the same cause, in this order: an
// address before its numbers, a date before its parts.
var placeholders = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`(?i)\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "<id>"},
	{regexp.MustCompile(`"(?:[^"\\]|\\.)*"|` + "`[^`]*`" + `|“[^”]*”|«[^»]*»`), "<text>"},
	{regexp.MustCompile(`(^|[\s(\[{=:,])'[^'\s][^']*'`), "$1<text>"}, // an apostrophe quotes nothing
	{regexp.MustCompile(`[\p{L}\p{N}._%+-]+@[\p{L}\p{N}-]+(?:\.[\p{L}\p{N}-]+)+`), "<email>"},
	{regexp.MustCompile(`\bhttps?://[^\s<>]+`), "<url>"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?\b`), "<time>"},
	{regexp.MustCompile(`\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|\[[0-9a-fA-F:.]+\](?::\d+)?`), "<address>"},
	{regexp.MustCompile(`(\b[\p{L}\p{N}-]+(?:\.[\p{L}\p{N}-]+)+|\blocalhost):\d{2,5}\b`), "$1:<port>"},
	{regexp.MustCompile(`\b(?:0x)?[0-9a-fA-F]*\d[0-9a-fA-F]{7,}\b|\b[0-9a-fA-F]{7,}\d[0-9a-fA-F]*\b`), "<id>"},
	{regexp.MustCompile(`\b\p{L}[\p{L}\p{N}]*[-_:#/]?\p{N}[\p{L}\p{N}_-]*\b`), "<id>"},
	{regexp.MustCompile(`\b\d+(?:[.,]\d+)*(?:ns|µs|us|ms|s|m|h|%|[kKMG]?i?B)?\b`), "<n>"},
}

// fingerprint is a text without what is about one event alone. It is also what may be shown of an error:
// no quoted value, address, key or number is left in it.
func fingerprint(text string) string {
	for _, p := range placeholders {
		text = p.pattern.ReplaceAllString(text, p.with)
	}
	return strings.Join(strings.Fields(text), " ")
}

// anything stands for words that differ.
const anything = "<…>"

// alike merges two fingerprints, word by word, if most of their words are the same: then the rest is
// about one event, too, such as a name.
func alike(a, b []string) ([]string, bool) {
	if len(a) != len(b) {
		return nil, false
	}
	merged, same := slices.Clone(a), 0
	for i := range a {
		if a[i] == b[i] && a[i] != anything {
			same++
		} else {
			merged[i] = anything
		}
	}
	return merged, same > 0 && 5*same >= 3*len(a)
}
