package storm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// What all dispatchers are told: short enough that an hour holds many recoveries.
const (
	lease        = 5 * time.Second
	pollInterval = 300 * time.Millisecond
	grace        = 3 * time.Second
	dispatchers  = 3
)

// Of a control run, in which nobody has to recover and no request may be given up because the machine is busy.
const (
	controlLease   = 25 * time.Second
	controlTimeout = 20 * time.Second
)

// held is the destination in which what follows a dead event waits for a person.
const held = "strict"

// destinations are those of a run. Events of "copied.*" are written without one, and routed to plain and audit.
func destinations(control bool) []history.Destination {
	usual := history.Destination{
		RequestTimeout: 1500 * time.Millisecond, Parallel: 12, BatchSize: 60,
		MaxAttempts: 15, Base: 200 * time.Millisecond, Cap: 2 * time.Second, Jitter: 0.2,
	}
	plain, orders, strict, partner, limited, audit := usual, usual, usual, usual, usual, usual
	plain.Name = "plain"
	orders.Name, orders.Ordered, orders.Parallel = "orders", true, 16
	strict.Name, strict.Ordered, strict.Hold = held, true, true
	partner.Name, partner.RequestTimeout, partner.Breaker, partner.Cooldown = "partner", time.Second, 6, time.Second
	limited.Name, limited.Rate, limited.TenantParallel, limited.TenantRate = "limited", 40, 2, 8
	audit.Name, audit.Parallel, audit.BatchSize = "audit", 6, 20
	all := []history.Destination{plain, orders, strict, partner, limited, audit}
	for i := range all {
		if control {
			all[i].RequestTimeout = controlTimeout
		}
	}
	return all
}

const routesText = `routes:
  - {event_type: "copied.*", to: [plain, audit]}
`

// configFile writes the dispatchers' configuration and a secret for each destination.
func configFile(dir string, s *history.Setup, urls map[string]string, v *vault) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "poll_interval: %s\ngrace: %s\nlog_level: debug\ndestinations:\n", pollInterval, grace)
	for _, d := range s.Destinations {
		fmt.Fprintf(&b, "  %s:\n    url: %s/hooks\n    secret_file: %s\n    allow_private: true\n", d.Name, urls[d.Name], v.file(d.Name))
		fmt.Fprintf(&b, "    lease: %s\n    request_timeout: %s\n    parallel: %d\n    batch_size: %d\n", s.Lease, d.RequestTimeout, d.Parallel, d.BatchSize)
		fmt.Fprintf(&b, "    retry: {max_attempts: %d, backoff: %s..%s, jitter: %g}\n", d.MaxAttempts, d.Base, d.Cap, d.Jitter)
		fmt.Fprintf(&b, "    breaker: {failures: %d, cooldown: %s}\n", d.Breaker, max(d.Cooldown, time.Second))
		if d.Ordered {
			b.WriteString("    ordering: aggregate\n")
		}
		if d.Hold {
			b.WriteString("    on_dead: hold\n")
		}
		if d.Rate > 0 {
			fmt.Fprintf(&b, "    rate: %g/s\n", d.Rate)
		}
		if d.TenantParallel > 0 {
			fmt.Fprintf(&b, "    tenants: {parallel: %d, rate: %g/s}\n", d.TenantParallel, d.TenantRate)
		}
	}
	b.WriteString(routesText)
	file := filepath.Join(dir, "outboxctl.yaml")
	return file, os.WriteFile(file, []byte(b.String()), 0o600)
}
