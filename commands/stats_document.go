package commands

import (
	"math"
	"strconv"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

// statsDocument is outboxctl.stats/v1. Its keys are an interface: they stay.
type statsDocument struct {
	Schema                  string                  `json:"schema"`
	Status                  map[outbox.Status]int64 `json:"status"`
	Estimated               bool                    `json:"estimated"`
	OpenEstimated           bool                    `json:"open_estimated"`
	LagSeconds              float64                 `json:"lag_seconds"`
	Due                     int64                   `json:"due"`
	Retrying                int64                   `json:"retrying"`
	Future                  int64                   `json:"future"`
	OldestDueSeconds        float64                 `json:"oldest_due_seconds"`
	OldestInProgressSeconds float64                 `json:"oldest_in_progress_seconds"`
	NextDueSeconds          *float64                `json:"next_due_seconds"` // null = nothing waits for its time
	LapsedLeases            int64                   `json:"lapsed_leases"`
	Unrouted                int64                   `json:"unrouted"`
	DeliveredPerMinute      map[string]float64      `json:"delivered_per_minute"`
	CreatedPerMinute        map[string]float64      `json:"created_per_minute"`
	LastDeliveredSeconds    *float64                `json:"last_delivered_seconds"` // null = none within a day
	DrainSeconds            *float64                `json:"drain_seconds"`          // null = the backlog does not shrink
	BuriedLastHour          map[outbox.Status]int64 `json:"buried_last_hour"`
	WindowSeconds           float64                 `json:"window_seconds"`
	Attempts                int64                   `json:"attempts"`
	Errors                  int64                   `json:"errors"`
	ErrorShare              float64                 `json:"error_share"`
	Answers                 []answerDocument        `json:"answers"`
	AttemptsUntilSuccess    map[string]int64        `json:"attempts_until_success"`
	RetriesByAttempt        map[string]int64        `json:"retries_by_attempt"`
	EventTypes              []eventTypeDocument     `json:"event_types"`
	EventTypesTotal         int                     `json:"event_types_total"`
	Tenants                 []tenantDocument        `json:"tenants"`
	TenantsTotal            int                     `json:"tenants_total"`
	Dispatchers             []dispatcherDocument    `json:"dispatchers"`
	Destinations            []destinationDocument   `json:"destinations"`
	DestinationsTotal       int                     `json:"destinations_total"`
	Unserved                []string                `json:"unserved"` // destinations with due events and nobody to deliver them
	Database                databaseDocument        `json:"database"`
}

type answerDocument struct {
	ErrorKind string `json:"error_kind"`
	Code      int    `json:"code"`
	Attempts  int64  `json:"attempts"`
}

// depthDocument is what destinations, event types and tenants have in common.
type depthDocument struct {
	Open             int64   `json:"open"`
	Due              int64   `json:"due"`
	Retrying         int64   `json:"retrying"`
	Future           int64   `json:"future"`
	LapsedLeases     int64   `json:"lapsed_leases"`
	OldestDueSeconds float64 `json:"oldest_due_seconds"`
}

type eventTypeDocument struct {
	EventType string                  `json:"event_type"`
	Status    map[outbox.Status]int64 `json:"status"`
	depthDocument
}

type tenantDocument struct {
	Tenant string                  `json:"tenant"`
	Status map[outbox.Status]int64 `json:"status"`
	depthDocument
}

type dispatcherDocument struct {
	Name         string   `json:"name"`
	Host         string   `json:"host"`
	PID          int      `json:"pid"`
	Version      string   `json:"version"`
	Destinations []string `json:"destinations"`
	Parallel     int      `json:"parallel"`
	BatchSize    int      `json:"batch_size"`
	UpSeconds    float64  `json:"up_seconds"`
	SeenSeconds  float64  `json:"seen_seconds"`
}

type destinationDocument struct {
	Name        string                  `json:"name"`
	Ordering    string                  `json:"ordering"`
	Late        int64                   `json:"late"`
	Breaker     string                  `json:"breaker"`
	Paused      bool                    `json:"paused"`
	PausedUntil *time.Time              `json:"paused_until"` // null with paused = until resumed
	Reason      string                  `json:"reason"`
	Tenants     []pausedTenantDocument  `json:"paused_tenants"`
	Served      bool                    `json:"served"`
	Status      map[outbox.Status]int64 `json:"status"`
	depthDocument
	Attempts       int64            `json:"attempts"`
	ErrorShare     float64          `json:"error_share"`
	LatencySeconds float64          `json:"latency_seconds"`
	Answers        []answerDocument `json:"answers"`
}

type pausedTenantDocument struct {
	Tenant      string     `json:"tenant"`
	PausedUntil *time.Time `json:"paused_until"` // null = until resumed
	Reason      string     `json:"reason"`
	PausedBy    string     `json:"paused_by"`
}

type databaseDocument struct {
	TableBytes     int64             `json:"table_bytes"`
	IndexBytes     int64             `json:"index_bytes"`
	DeadRows       int64             `json:"dead_rows"`
	DeadShare      float64           `json:"dead_share"`
	InvalidIndexes []string          `json:"invalid_indexes"`
	OldestSnapshot *snapshotDocument `json:"oldest_snapshot"`
	Slots          []slotDocument    `json:"slots"`
}

type slotDocument struct {
	Name      string `json:"name"`
	Temporary bool   `json:"temporary"`
	Active    bool   `json:"active"`
	WALStatus string `json:"wal_status"`
	LagBytes  *int64 `json:"lag_bytes"` // null = its log is lost, or it is being made
}

type snapshotDocument struct {
	Holder       string   `json:"holder"`
	Name         string   `json:"name"`
	PID          int      `json:"pid"`
	State        string   `json:"state"`
	AgeSeconds   *float64 `json:"age_seconds"` // null = hidden from this role
	Transactions int64    `json:"transactions"`
}

func newStatsDocument(st *outbox.Stats) statsDocument {
	doc := statsDocument{
		Schema: "outboxctl.stats/v1", Status: st.Status, Estimated: st.Estimated, OpenEstimated: st.OpenEstimated,
		LagSeconds: round(st.Lag.Seconds(), 3), Due: st.Due, Retrying: st.Retrying, Future: st.Future,
		OldestDueSeconds: round(st.OldestDue.Seconds(), 3), OldestInProgressSeconds: round(st.OldestInProgress.Seconds(), 3),
		NextDueSeconds: secondsUnless(st.NextDue, st.NextDue == 0), LapsedLeases: st.Lapsed, Unrouted: st.Unrouted,
		DeliveredPerMinute: rounded(st.Delivered), CreatedPerMinute: rounded(st.Created),
		LastDeliveredSeconds: secondsUnless(st.LastDelivered, st.LastDelivered < 0), DrainSeconds: secondsUnless(st.Drain(), st.Drain() < 0),
		BuriedLastHour: st.Buried, WindowSeconds: st.Window.Seconds(),
		Attempts: st.Attempts, Errors: st.Errors, ErrorShare: round(st.ErrorShare(), 4), Answers: answerDocuments(st.Answers),
		AttemptsUntilSuccess: byAttempt(st.Tries.Delivered), RetriesByAttempt: byAttempt(st.Tries.Retried),
		EventTypes: []eventTypeDocument{}, EventTypesTotal: st.EventTypes.Of, Tenants: []tenantDocument{}, TenantsTotal: st.Tenants.Of,
		Dispatchers: []dispatcherDocument{}, Destinations: []destinationDocument{}, DestinationsTotal: len(st.Destinations) + st.Unlisted,
		Unserved: []string{}, Database: newDatabaseDocument(st.Database),
	}
	for _, d := range st.EventTypes.Top {
		doc.EventTypes = append(doc.EventTypes, eventTypeDocument{d.Name, d.Status, newDepthDocument(d)})
	}
	for _, d := range st.Tenants.Top {
		doc.Tenants = append(doc.Tenants, tenantDocument{d.Name, d.Status, newDepthDocument(d)})
	}
	for _, d := range st.Dispatchers {
		doc.Dispatchers = append(doc.Dispatchers, dispatcherDocument{
			Name: d.Name, Host: d.Host, PID: d.PID, Version: d.Version, Destinations: destinationNames(d.Destinations),
			Parallel: d.Parallel, BatchSize: d.BatchSize,
			UpSeconds: round(d.Up.Seconds(), 1), SeenSeconds: round(d.Seen.Seconds(), 1),
		})
	}
	for _, d := range st.Destinations {
		doc.Destinations = append(doc.Destinations, destinationDocument{
			Name: destinationName(d.Name), Ordering: d.Ordering, Late: d.Late, Breaker: d.Breaker, Paused: d.Paused, PausedUntil: d.PausedUntil,
			Reason: d.Reason, Tenants: pausedTenantDocuments(d.Tenants), Served: d.Served, Status: d.Status, depthDocument: newDepthDocument(d.Depth),
			Attempts: d.Attempts, ErrorShare: round(d.ErrorShare(), 4), LatencySeconds: round(d.Latency().Seconds(), 4),
			Answers: answerDocuments(d.Answers),
		})
	}
	for _, d := range st.Unserved() {
		doc.Unserved = append(doc.Unserved, destinationName(d.Name))
	}
	return doc
}

func pausedTenantDocuments(pauses []outbox.Paused) []pausedTenantDocument {
	docs := []pausedTenantDocument{}
	for _, p := range pauses {
		doc := pausedTenantDocument{Tenant: p.Tenant, Reason: p.Reason, PausedBy: p.By}
		if !p.Until.IsZero() {
			doc.PausedUntil = &p.Until
		}
		docs = append(docs, doc)
	}
	return docs
}

func newDepthDocument(d outbox.Depth) depthDocument {
	return depthDocument{d.Open(), d.Due, d.Retrying, d.Future, d.Lapsed, round(d.OldestDue.Seconds(), 3)}
}

func newDatabaseDocument(d outbox.DatabaseStats) databaseDocument {
	doc := databaseDocument{
		TableBytes: d.TableBytes, IndexBytes: d.IndexBytes, DeadRows: d.DeadRows, DeadShare: round(d.DeadShare(), 4),
		InvalidIndexes: append([]string{}, d.InvalidIndexes...), Slots: []slotDocument{},
	}
	for _, s := range d.Slots {
		slot := slotDocument{Name: s.Name, Temporary: s.Temporary, Active: s.Active, WALStatus: s.WALStatus}
		if s.Lag >= 0 {
			slot.LagBytes = &s.Lag
		}
		doc.Slots = append(doc.Slots, slot)
	}
	if h := d.Snapshot; h != nil {
		doc.OldestSnapshot = &snapshotDocument{h.Holder, h.Name, h.PID, h.State, secondsUnless(h.Age, h.Age < 0), h.Transactions}
	}
	return doc
}

func answerDocuments(all []outbox.AnswerStats) []answerDocument {
	docs := []answerDocument{}
	for _, an := range all {
		docs = append(docs, answerDocument{an.Kind, an.Code, an.N})
	}
	return docs
}

func byAttempt(counts map[int]int64) map[string]int64 {
	doc := map[string]int64{}
	for attempt, n := range counts {
		doc[strconv.Itoa(attempt)] = n
	}
	return doc
}

// secondsUnless is null when there is nothing to tell.
func secondsUnless(d time.Duration, none bool) *float64 {
	if none {
		return nil
	}
	return new(round(d.Seconds(), 3))
}

func rounded(rates map[string]float64) map[string]float64 {
	doc := map[string]float64{}
	for name, rate := range rates {
		doc[name] = round(rate, 1)
	}
	return doc
}

func destinationNames(names []string) []string {
	shown := make([]string, len(names))
	for i, name := range names {
		shown[i] = destinationName(name)
	}
	return shown
}

func round(v float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(v*scale) / scale
}
