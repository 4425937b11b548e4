package outbox_test

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outboxctl/outboxctl/outbox"
)

func TestRouteMatchesWhenEveryConditionHolds(t *testing.T) {
	t.Parallel()
	ev := outbox.Event{
		TenantID: "acme", AggregateType: "order", AggregateID: "42", Type: "order.created", SchemaVersion: 2,
		Headers: map[string]string{"region": "eu", "empty": ""},
	}
	for _, tt := range []struct {
		name  string
		route outbox.Route
		want  bool
	}{
		{"no condition", outbox.Route{}, true},
		{"type", outbox.Route{EventTypes: []string{"order.created"}}, true},
		{"another type", outbox.Route{EventTypes: []string{"order.cancelled"}}, false},
		{"glob", outbox.Route{EventTypes: []string{"email.*", "order.*"}}, true},
		{"the dot is a dot", outbox.Route{EventTypes: []string{"order?created", "order_created", "orderXcreated"}}, false},
		{"letters count", outbox.Route{EventTypes: []string{"Order.*"}}, false},
		{"glob in the middle", outbox.Route{EventTypes: []string{"o*r.*ted"}}, true},
		{"any", outbox.Route{EventTypes: []string{"*"}}, true},
		{"tenant", outbox.Route{TenantIDs: []string{"globex", "acme"}}, true},
		{"another tenant", outbox.Route{TenantIDs: []string{"acm*"}}, false},
		{"aggregate type", outbox.Route{AggregateTypes: []string{"order"}}, true},
		{"another aggregate type", outbox.Route{AggregateTypes: []string{"invoice"}}, false},
		{"version", outbox.Route{SchemaVersions: outbox.VersionRange{Min: 2, Max: 2}}, true},
		{"below the range", outbox.Route{SchemaVersions: outbox.VersionRange{Min: 3}}, false},
		{"above the range", outbox.Route{SchemaVersions: outbox.VersionRange{Max: 1}}, false},
		{"header", outbox.Route{Headers: map[string]string{"region": "eu"}}, true},
		{"another value", outbox.Route{Headers: map[string]string{"region": "us"}}, false},
		{"one header of two", outbox.Route{Headers: map[string]string{"region": "eu", "kind": "x"}}, false},
		{"an empty header is there", outbox.Route{Headers: map[string]string{"empty": ""}}, true},
		{"an absent header is not empty", outbox.Route{Headers: map[string]string{"absent": ""}}, false},
		{"disabled", outbox.Route{Disabled: true}, false},
		{"all percent", outbox.Route{Percent: 100}, true},
		{"all but one condition", outbox.Route{EventTypes: []string{"order.*"}, TenantIDs: []string{"acme"}, AggregateTypes: []string{"invoice"}}, false},
	} {
		if got := tt.route.Matches(&ev); got != tt.want {
			t.Errorf("%s: Matches() = %v, want %v", tt.name, got, tt.want)
		}
	}
	if (&outbox.Route{SchemaVersions: outbox.VersionRange{Min: 2}}).Matches(&outbox.Event{}) {
		t.Error("an event without a version, which is 1, is in >=2")
	}
}

func TestRoutesGatherEachDestinationOnce(t *testing.T) {
	t.Parallel()
	routes := outbox.Routes{
		{EventTypes: []string{"order.*"}, To: []string{"crm", "mail"}},
		{EventTypes: []string{"*"}, Shadow: true, To: []string{"staging", "mail"}},
		{EventTypes: []string{"*.created"}, To: []string{"mail", "search"}},
		{EventTypes: []string{"user.*"}, Disabled: true, To: []string{"crm"}},
	}
	for kind, want := range map[string]outbox.Targets{
		"order.created": {To: []string{"crm", "mail", "search"}, Shadow: []string{"staging"}},
		"order.paid":    {To: []string{"crm", "mail"}, Shadow: []string{"staging"}},
		"user.renamed":  {Shadow: []string{"staging", "mail"}},
	} {
		if diff := cmp.Diff(want, routes.Match(&outbox.Event{Type: kind})); diff != "" {
			t.Errorf("Match(%s) (-want +got):\n%s", kind, diff)
		}
	}
	if got := (outbox.Routes{}).Match(&outbox.Event{}); len(got.To)+len(got.Shadow) > 0 {
		t.Errorf("Match() without routes = %v", got)
	}
}

func TestPercentIsOfAggregatesAndGrows(t *testing.T) {
	t.Parallel()
	const n = 20_000
	var counts [3]int
	for i := range n {
		ev := outbox.Event{TenantID: "acme", AggregateType: "order", AggregateID: fmt.Sprint(i)}
		before := false
		for j, percent := range []float64{0.5, 10, 50} {
			matches := (&outbox.Route{Percent: percent}).Matches(&ev)
			if before && !matches {
				t.Fatalf("order %d is in a smaller share and not in %v %%", i, percent)
			}
			if before = matches; matches {
				counts[j]++
			}
		}
	}
	for j, want := range []float64{0.005 * n, 0.1 * n, 0.5 * n} {
		if got := float64(counts[j]); math.Abs(got-want) > 5*math.Sqrt(want) {
			t.Errorf("%v of %d aggregates match, want about %v", got, n, want)
		}
	}
}

func TestPercentIsTheSameForEver(t *testing.T) {
	t.Parallel()
	// select ('x' || left(encode(sha256('acme\000order\00042'::bytea), 'hex'), 16))::bit(64) …
	ev := outbox.Event{TenantID: "acme", AggregateType: "order", AggregateID: "42"}
	if below, above := (&outbox.Route{Percent: 70.9}).Matches(&ev), (&outbox.Route{Percent: 71}).Matches(&ev); below || !above {
		t.Errorf("order 42 of acme is at %v, %v; a release moved it", below, above)
	}
	pairs := [][2]outbox.Event{
		{{AggregateType: "order:1", AggregateID: "2"}, {AggregateType: "order", AggregateID: "1:2"}},
		{{TenantID: "a", AggregateType: "b"}, {AggregateType: "a", AggregateID: "b"}},
		{{AggregateType: "ab", AggregateID: "c"}, {AggregateType: "a", AggregateID: "bc"}},
	}
	for _, pair := range pairs {
		if outbox.AggregatePercentile(&pair[0]) == outbox.AggregatePercentile(&pair[1]) {
			t.Errorf("%v and %v have one place", pair[0], pair[1])
		}
	}
}

func TestParseVersionRange(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]outbox.VersionRange{
		"2": {Min: 2, Max: 2}, "=2": {Min: 2, Max: 2}, ">=2": {Min: 2}, ">2": {Min: 3}, "<=3": {Min: 1, Max: 3}, "<3": {Min: 1, Max: 2},
		">=2 <4": {Min: 2, Max: 3}, ">=2, <=2": {Min: 2, Max: 2}, " >1 ": {Min: 2},
	} {
		if got, err := outbox.ParseVersionRange(text); got != want || err != nil {
			t.Errorf("ParseVersionRange(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", " ", "x", "2.0", ">= 2", "~2", ">=", "0", "-1", "<1", ">3 <3", "2 3", "99999999999", "!=2", "2>"} {
		if got, err := outbox.ParseVersionRange(text); err == nil {
			t.Errorf("ParseVersionRange(%q) = %v, want an error", text, got)
		}
	}
}

// FuzzVersionRange holds the range to what it prints.
func FuzzVersionRange(f *testing.F) {
	for _, text := range []string{"2", ">=2", ">=2 <4", "<=3,>1", "=1", "", ">2147483646"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := outbox.ParseVersionRange(text)
		if err != nil {
			return
		}
		again, err := outbox.ParseVersionRange(r.String())
		if err != nil || again.Min != max(r.Min, 1) || again.Max != r.Max {
			t.Errorf("ParseVersionRange(%q) = %+v, printed %q, read again %+v, %v", text, r, r.String(), again, err)
		}
	})
}

// FuzzRouteGlob compares with a regular expression, and matching with itself.
func FuzzRouteGlob(f *testing.F) {
	for _, pair := range [][2]string{{"order.*", "order.created"}, {"*", ""}, {"a*a", "a"}, {"*ab*ab", "abab"}, {"a**b", "ab"}, {"", ""}, {"\xff*", "\xff"}} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, glob, text string) {
		pattern := regexp.MustCompile(`(?s)\A` + strings.Join(strings.Split(regexp.QuoteMeta(strings.ToValidUTF8(glob, "?")), `\*`), ".*") + `\z`)
		ev := outbox.Event{Type: strings.ToValidUTF8(text, "?")}
		routes := outbox.Routes{{EventTypes: []string{strings.ToValidUTF8(glob, "?")}, To: []string{"a"}}, {Shadow: true, To: []string{"b"}}}
		got := routes.Match(&ev)
		if want := pattern.MatchString(ev.Type); want != (len(got.To) == 1) {
			t.Errorf("glob %q, type %q: %v, want %v", glob, text, got, want)
		}
		if !reflect.DeepEqual(got, routes.Match(&ev)) {
			t.Errorf("two matches of %q differ", text)
		}
	})
}
