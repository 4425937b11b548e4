package commands

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"

	"github.com/outboxctl/outboxctl/outbox"
)

// fileRoute is a route as it stands in a file.
type fileRoute struct {
	route    outbox.Route
	line     int
	flags    *pflag.FlagSet
	versions string
}

// readRoutes reads the routes in their order.
func (f *configFile) readRoutes(r *configReader, n *yaml.Node) {
	if n = resolved(n); n.Kind != yaml.SequenceNode {
		r.complain(n, "routes is no list")
		return
	}
	if len(n.Content) == 0 {
		r.complain(n, "routes is empty")
	}
	for _, item := range n.Content {
		f.routes = append(f.routes, f.readRoute(r, resolved(item)))
	}
}

func (f *configFile) readRoute(r *configReader, n *yaml.Node) fileRoute {
	var (
		route   = fileRoute{line: n.Line}
		to      = &route.route
		enabled = true
		percent = 100.0
	)
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.StringSliceVar(&to.EventTypes, "event_type", nil, "")
	fs.StringSliceVar(&to.TenantIDs, "tenant", nil, "")
	fs.StringSliceVar(&to.AggregateTypes, "aggregate_type", nil, "")
	fs.StringVar(&route.versions, "schema_version", "", "")
	fs.BoolVar(&enabled, "enabled", true, "")
	fs.Float64Var(&percent, "percent", 100, "")
	fs.BoolVar(&to.Shadow, "shadow", false, "")
	fs.StringSliceVar(&to.To, "to", nil, "")
	route.flags = fs

	nodes := r.flags(n, "a route", fs, "headers")
	if headers := nodes["headers"]; headers != nil {
		to.Headers = map[string]string{}
		for _, header := range r.pairs(headers, "headers") {
			if value, ok := r.text(header.value, "headers."+header.name); ok {
				to.Headers[header.name] = value
			}
		}
	}
	if fs.Changed("schema_version") {
		versions, err := outbox.ParseVersionRange(route.versions)
		if err != nil {
			r.complain(nodes["schema_version"], "schema_version: %s", err)
		}
		to.SchemaVersions = versions
	}
	if !(percent >= 0 && percent <= 100) {
		r.complain(nodes["percent"], "percent must be between 0 and 100")
	}
	to.Disabled, to.Percent = !enabled || percent == 0, percent
	f.checkTargets(r, n, nodes, to)
	checkEmpty(r, nodes, to)
	return route
}

// checkTargets refuses a route to nowhere.
func (f *configFile) checkTargets(r *configReader, n *yaml.Node, nodes map[string]*yaml.Node, route *outbox.Route) {
	if nodes["to"] == nil {
		r.complain(n, "the route leads nowhere: to is missing")
		return
	}
	if len(route.To) == 0 {
		r.complain(nodes["to"], "the route leads nowhere: to is empty")
	}
	for i, name := range route.To {
		at := r.items(nodes["to"])[min(i, len(r.items(nodes["to"]))-1)]
		switch {
		case f.destination(name) == nil:
			r.complain(at, "to: there is no destination %q%s", name, f.nearDestination(name))
		case slices.Contains(route.To[:i], name):
			r.complain(at, "to: %s is there twice", name)
		}
	}
}

func (f *configFile) nearDestination(name string) string {
	var known []string
	for _, d := range f.destinations {
		known = append(known, d.destination.key)
	}
	if near := nearest(name, known); near != "" {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	return ""
}

// checkEmpty refuses conditions that nothing can meet, or that would hold for all by mistake.
func checkEmpty(r *configReader, nodes map[string]*yaml.Node, route *outbox.Route) {
	for key, values := range map[string][]string{"event_type": route.EventTypes, "tenant": route.TenantIDs, "aggregate_type": route.AggregateTypes} {
		if n := nodes[key]; n != nil && (len(values) == 0 || key != "tenant" && slices.Contains(values, "")) {
			r.complain(n, "%s has an empty value; leave it out for all", key)
		}
	}
}

// shownSettings are what the file says of the route.
func (r *fileRoute) shownSettings(before string, f *configFile) (all []shownSetting) {
	r.flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed {
			all = append(all, shownSetting{before + flag.Name, typedValue(flag.Value), f.line(r.line)})
		}
	})
	for name, value := range r.route.Headers {
		all = append(all, shownSetting{before + "headers." + name, value, f.line(r.line)})
	}
	return all
}
