package outbox

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Route sends the events that match to destinations. Every condition must hold; one that is left out
// holds for all events.
type Route struct {
	EventTypes     []string          // globs: * stands for any text; one must match
	TenantIDs      []string          // one must be the event's
	AggregateTypes []string          // one must be the event's
	SchemaVersions VersionRange      // the event's must be in it
	Headers        map[string]string // each must be the event's, letter by letter

	Disabled bool     // matches nothing
	Percent  float64  // of aggregates, 0..100; 0 means all of them
	Shadow   bool     // gives copies away and never takes an event over
	To       []string // destinations
}

// Matches reports whether the route wants the event.
func (r *Route) Matches(ev *Event) bool {
	switch {
	case r.Disabled,
		len(r.EventTypes) > 0 && !slices.ContainsFunc(r.EventTypes, func(glob string) bool { return matchGlob(glob, ev.Type) }),
		len(r.TenantIDs) > 0 && !slices.Contains(r.TenantIDs, ev.TenantID),
		len(r.AggregateTypes) > 0 && !slices.Contains(r.AggregateTypes, ev.AggregateType),
		!r.SchemaVersions.Contains(max(ev.SchemaVersion, 1)):
		return false
	}
	for name, value := range r.Headers {
		if has, ok := ev.Headers[name]; !ok || has != value {
			return false
		}
	}
	return r.Percent <= 0 || r.Percent >= 100 || aggregatePercentile(ev) < r.Percent
}

// Routes are all routes, in the order in which they count.
type Routes []Route

// Targets are where an event goes, each destination once, in the order of the routes. To[0] takes the
// row itself, the others and all of Shadow get copies. Without To nobody takes it: it stays unrouted,
// whoever shadows it.
type Targets struct{ To, Shadow []string }

// Match gathers the destinations of all routes that want the event. A destination that both takes
// and shadows it takes it.
func (rs Routes) Match(ev *Event) (t Targets) {
	for i := range rs {
		r := &rs[i]
		if !r.Matches(ev) {
			continue
		}
		list := &t.To
		if r.Shadow {
			list = &t.Shadow
		}
		for _, name := range r.To {
			if !slices.Contains(*list, name) {
				*list = append(*list, name)
			}
		}
	}
	t.Shadow = slices.DeleteFunc(t.Shadow, func(name string) bool { return slices.Contains(t.To, name) })
	return t
}

// aggregatePercentile places an aggregate in [0, 100), the same in every process and for ever: the
// first 64 bits of the SHA-256 of its tenant, type and id. NUL lies between them, which cannot occur
// in PostgreSQL's text, so that ("order:1", "2") and ("order", "1:2") differ.
func aggregatePercentile(ev *Event) float64 {
	sum := sha256.Sum256([]byte(ev.TenantID + "\x00" + ev.AggregateType + "\x00" + ev.AggregateID))
	const bits = 53 // of a float64's mantissa
	return float64(binary.BigEndian.Uint64(sum[:])>>(64-bits)) / (1 << bits) * 100
}

// matchGlob reports whether text is what glob says: * is any text, also none, all else is itself.
func matchGlob(glob, text string) bool {
	parts := strings.Split(glob, "*")
	if len(parts) == 1 {
		return glob == text
	}
	first, last := parts[0], parts[len(parts)-1]
	if !strings.HasPrefix(text, first) {
		return false
	}
	text = text[len(first):]
	for _, part := range parts[1 : len(parts)-1] { // each as early as it can be
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return strings.HasSuffix(text, last)
}

// VersionRange is a range of schema versions, ends included. The zero value contains all.
type VersionRange struct {
	Min int // 0 = from the first
	Max int // 0 = without end
}

// Contains reports whether version v is in the range.
func (r VersionRange) Contains(v int) bool { return v >= r.Min && (r.Max == 0 || v <= r.Max) }

// String is the range as [ParseVersionRange] reads it.
func (r VersionRange) String() string {
	switch {
	case r.Min == r.Max && r.Min > 0:
		return strconv.Itoa(r.Min)
	case r.Max == 0:
		return fmt.Sprintf(">=%d", max(r.Min, 1))
	case r.Min <= 1:
		return fmt.Sprintf("<=%d", r.Max)
	}
	return fmt.Sprintf(">=%d <=%d", r.Min, r.Max)
}

// ParseVersionRange reads 2, >=2, >1, <=3, <4 or several of them that must all hold, separated by
// blanks or commas: ">=2 <4".
func ParseVersionRange(text string) (VersionRange, error) {
	terms := strings.FieldsFunc(text, func(c rune) bool { return c == ' ' || c == ',' })
	r := VersionRange{Min: 1, Max: math.MaxInt32} // the column is an int
	for _, term := range terms {
		operator := strings.TrimRight(term, "0123456789")
		n, err := strconv.ParseInt(term[len(operator):], 10, 32)
		if err != nil || n < 1 {
			return VersionRange{}, fmt.Errorf("%q is not a range of versions such as 2, >=2 or \">=2 <4\"", text)
		}
		switch v := int(n); operator {
		case "", "=":
			r.Min, r.Max = max(r.Min, v), min(r.Max, v)
		case ">=":
			r.Min = max(r.Min, v)
		case ">":
			r.Min = max(r.Min, v+1)
		case "<=":
			r.Max = min(r.Max, v)
		case "<":
			r.Max = min(r.Max, v-1)
		default:
			return VersionRange{}, fmt.Errorf("%q is not a range of versions such as 2, >=2 or \">=2 <4\"", text)
		}
	}
	if len(terms) == 0 || r.Min > r.Max {
		return VersionRange{}, fmt.Errorf("no version is in the range %q", text)
	}
	if r.Max == math.MaxInt32 {
		r.Max = 0
	}
	return r, nil
}
