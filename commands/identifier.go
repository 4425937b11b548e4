package commands

import (
	"errors"
	"strings"
	"unicode"
)

// parseTable reads schema.table as SQL does: words are folded to lower case, and "quotes" take
// anything. Without a schema it is in public: no search path has a say.
func parseTable(text string) (schema, table string, err error) {
	var parts []string
	for rest := text; ; {
		var part string
		if part, rest, err = cutIdentifier(rest); err != nil {
			return "", "", err
		}
		parts = append(parts, part)
		if rest == "" {
			break
		}
		var dot bool
		if rest, dot = strings.CutPrefix(rest, "."); !dot {
			return "", "", errNoTable
		}
	}
	switch len(parts) {
	case 1:
		return "public", parts[0], nil
	case 2:
		return parts[0], parts[1], nil
	}
	return "", "", errNoTable
}

var errNoTable = errors.New(`want table or schema.table, with "double quotes" around a name that is no plain word`)

// cutIdentifier takes one name off the beginning of a text.
func cutIdentifier(text string) (name, rest string, err error) {
	if quoted, ok := strings.CutPrefix(text, `"`); ok {
		return cutQuoted(quoted)
	}
	end := strings.IndexFunc(text, func(r rune) bool { return r != '_' && r != '$' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	if end < 0 {
		end = len(text)
	}
	if name, rest = text[:end], text[end:]; name == "" || unicode.IsDigit(rune(name[0])) || name[0] == '$' {
		return "", "", errNoTable
	}
	return foldASCII(name), rest, nil
}

// foldASCII folds as PostgreSQL does with UTF-8: letters beyond ASCII stay.
func foldASCII(name string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, name)
}

// cutQuoted reads up to the closing quote; two in a row are one that belongs to the name.
func cutQuoted(text string) (name, rest string, err error) {
	for {
		part, after, closed := strings.Cut(text, `"`)
		name += part
		if !closed || strings.ContainsRune(name, 0) {
			return "", "", errNoTable
		}
		if text, closed = strings.CutPrefix(after, `"`); !closed {
			break
		}
		name += `"`
	}
	if name == "" {
		return "", "", errNoTable
	}
	return name, text, nil
}
