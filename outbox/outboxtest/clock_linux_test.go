package outboxtest_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

func TestShiftMovesTheServersClockAlone(t *testing.T) {
	t.Parallel()
	c, err := outboxtest.Start(outboxtest.Options{Clock: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	conn, err := pgx.Connect(t.Context(), c.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, shift := range []time.Duration{0, time.Hour, -time.Hour, 90*24*time.Hour + 500*time.Millisecond, 0} {
		if err := c.Shift(shift); err != nil {
			t.Fatal(err)
		}
		var at time.Time
		began := time.Now()
		if err := conn.QueryRow(t.Context(), "select clock_timestamp() from pg_sleep(0.1)").Scan(&at); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		if off := at.Sub(now) - shift; off.Abs() > time.Second {
			t.Errorf("after Shift(%s) the server is %s ahead", shift, at.Sub(now))
		}
		if took := now.Sub(began); took < 100*time.Millisecond || took > 5*time.Second {
			t.Errorf("after Shift(%s) a pause of 100ms takes %s", shift, took)
		}
	}
}
