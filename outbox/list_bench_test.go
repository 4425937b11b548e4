package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/outboxctl/outboxctl/outbox"
)

// BenchmarkList is the first page of a listing, by what it asks for.
func BenchmarkList(b *testing.B) {
	db := desk(b)
	store := outbox.NewStore(db, "public")
	dead := []outbox.Status{outbox.Failed, outbox.DeadLetter}
	waiting := []outbox.Status{outbox.Pending, outbox.InProgress}
	listings := []struct {
		name string
		f    outbox.Filter
	}{
		{"all", outbox.Filter{}},
		{"dead", outbox.Filter{Statuses: dead}},
		{"dead-rare", outbox.Filter{Statuses: dead, Tenants: []string{"tenant-001"}, EventTypes: []string{"user.*"}, ErrorCodes: []int{422}}},
		{"open", outbox.Filter{Statuses: waiting}},
		{"open-rare", outbox.Filter{Statuses: waiting, Aggregates: []outbox.Aggregate{{Type: "order", ID: "290000"}}}},
		{"erred", outbox.Filter{ErrorCodes: []int{503}, Destinations: []string{"crm"}}},
		{"since", outbox.Filter{Since: time.Now().Add(-3 * time.Hour), Aggregates: []outbox.Aggregate{{Type: "order", ID: "285714"}}}},
		{"delivered", outbox.Filter{Statuses: []outbox.Status{outbox.Delivered}, Tenants: []string{"tenant-001"}}},
		{"key", outbox.Filter{Keys: []uuid.UUID{uuid.MustParse("00000000-0000-4000-8000-0000000f4240")}}},
	}
	for _, l := range listings {
		b.Run(l.name, func(b *testing.B) {
			milliseconds(b, func() error {
				_, err := store.List(context.Background(), l.f, nil, 50)
				return err
			})
		})
	}
}

// milliseconds reports how long f takes once the disk has been read.
func milliseconds(b *testing.B, f func() error) {
	b.Helper()
	var took time.Duration
	for warm := true; warm || b.Loop(); warm = false {
		began := time.Now()
		if err := f(); err != nil {
			b.Fatal(err)
		}
		if !warm {
			took += time.Since(began)
		}
	}
	b.ReportMetric(float64(took.Microseconds())/1000/float64(b.N), "ms")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkExplain is the whole of it, by where the event stands.
func BenchmarkExplain(b *testing.B) {
	db := desk(b)
	store := outbox.NewStore(db, "public")
	for name, id := range map[string]int64{
		"delivered": 1_000_000, "leased": 2_000_003, "lapsed": 2_000_004, "due": 2_000_050, "backing-off": 2_000_129,
		"future": 2_000_095, "failed": 2_100_005, "dead-letter": 2_100_004, "discarded": 2_120_500,
	} {
		b.Run(name, func(b *testing.B) {
			milliseconds(b, func() error {
				_, err := store.Explain(context.Background(), outbox.Ref{ID: id})
				return err
			})
		})
	}
}
