package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

// The loop's promises, against a source in memory and under a clock of the test's own.

func TestLoopClaimsAndSendsNoMoreThanItMay(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ batch, parallel int }{{20, 4}, {4, 4}, {3, 8}, {1, 1}, {100, 10}} {
		t.Run(fmt.Sprintf("batch %d, parallel %d", tt.batch, tt.parallel), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rows := newTable(400)
				sink := newGauge(func(ctx context.Context, ev outbox.Event) error {
					return took(time.Duration(1+ev.ID%7)*time.Millisecond)(ctx, ev)
				})
				d := newLoop(rows, sink)
				d.BatchSize, d.Parallel, d.Once = tt.batch, tt.parallel, true
				if s := runFor(t, d, time.Hour).summary; s.Delivered != 400 {
					t.Errorf("delivered %d, want 400", s.Delivered)
				}
				if rows.unsettled != tt.batch {
					t.Errorf("%d events were claimed and unsettled at once, want %d", rows.unsettled, tt.batch)
				}
				if want := min(tt.batch, tt.parallel); sink.most != want {
					t.Errorf("%d events were being sent at once, want %d", sink.most, want)
				}
			})
		})
	}
}

// With h of p slots hanging until their timeout the others do not less than 0.9·(p−h)/p of what
// all do.
func TestHangingDeliveriesCostTheirSlotsAlone(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ batch, parallel, hanging int }{
		{100, 10, 1}, {100, 10, 5}, {100, 10, 9}, {10, 10, 5}, {10, 10, 9}, {1000, 32, 16}, {4, 4, 3}, {12, 10, 6},
	} {
		t.Run(fmt.Sprintf("batch %d, parallel %d, hanging %d", tt.batch, tt.parallel, tt.hanging), func(t *testing.T) {
			delivered := func(hanging int) (n int) {
				synctest.Test(t, func(t *testing.T) {
					rows := newTable(50 * tt.parallel)
					d := newLoop(rows, newGauge(func(ctx context.Context, ev outbox.Event) error {
						if ev.ID <= int64(hanging) {
							return hang(ctx, ev)
						}
						return took(20*time.Millisecond)(ctx, ev)
					}))
					d.BatchSize, d.Parallel, d.Grace = tt.batch, tt.parallel, 0
					n = runFor(t, d, 500*time.Millisecond).summary.Delivered
				})
				return n
			}
			all, some := delivered(0), delivered(tt.hanging)
			want := 0.9 * float64(tt.parallel-tt.hanging) / float64(tt.parallel)
			if got := float64(some) / float64(all); got < want {
				t.Errorf("%d events a second, of %d without: %.2f, want at least %.2f", some, all, got, want)
			}
		})
	}
}

func TestPollBacksOffWhenIdleAndWorkResetsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(0)
		d := newLoop(rows, newGauge(took(time.Millisecond)))
		go func() {
			time.Sleep(20*time.Second + 500*time.Millisecond)
			rows.insert(0)
		}()
		runFor(t, d, 30*time.Second)
		claims := rows.claims()
		found := slices.IndexFunc(claims, func(tn turn) bool { return tn.events > 0 })
		if found < 0 {
			t.Fatal("the event was never claimed")
		}
		idle := []time.Duration{12, 22, 42, 82, 162, 322, 642, 1282, 2002, 2002} // the round trip included
		within(t, "from the start", gaps(claims[:found]), idle)
		within(t, "after work", gaps(claims[found+1:]), idle)
		if wait := claims[found].at.Sub(claims[0].at) - 20500*time.Millisecond; wait > 2200*time.Millisecond {
			t.Errorf("the event waited %s for its claim, want at most poll interval +10 %%", wait)
		}
	})
}

// within compares durations with milliseconds, ±10 % and only as many as are wanted.
func within(t *testing.T, name string, got, milliseconds []time.Duration) {
	t.Helper()
	if len(got) < len(milliseconds) {
		t.Errorf("%s: %d waits, want at least %d: %v", name, len(got), len(milliseconds), got)
		return
	}
	for i, ms := range milliseconds {
		want := ms * time.Millisecond
		if got[i] < want*9/10 || got[i] > want*11/10 {
			t.Errorf("%s: wait %d is %s, want %s ±10 %%: %v", name, i+1, got[i], want, got[:len(milliseconds)])
			return
		}
	}
}

// Claims that ride along with results find nothing again and again while the last deliveries are
// under way; that must not put off the poll after them.
func TestSettlingIsWorkForThePoll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(50)
		d := newLoop(rows, newGauge(func(ctx context.Context, ev outbox.Event) error {
			return took(time.Duration(ev.ID)*20*time.Millisecond)(ctx, ev)
		}))
		d.Parallel = 50
		runFor(t, d, 4*time.Second)
		claims := rows.claims()
		last := 0
		for i, tn := range claims {
			if tn.offered > 0 {
				last = i
			}
		}
		within(t, "after the last result", gaps(claims[last:]), []time.Duration{12, 22, 42, 82, 162})
	})
}

func TestIdleLoopLooksFromTheVeryStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(5)
		runFor(t, newLoop(rows, newGauge(nil)), 10*time.Second)
		claims := rows.claims()
		if !claims[0].want.Fresh {
			t.Error("the first claim is not fresh")
		}
		if last := claims[len(claims)-1]; !last.want.Fresh {
			t.Errorf("a claim of an idle loop is not fresh: %+v", last)
		}
	})
}

func TestTooLittleLeaseIsReleasedNotSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(10)
		rows.lease, rows.roundTrip = 7*time.Second, 200*time.Millisecond
		var released int
		var d *outbox.Dispatcher
		d = newLoop(rows, newGauge(func(ctx context.Context, ev outbox.Event) error {
			until := rows.leaseOf(ev.ID)
			if left := time.Until(until); left < d.RequestTimeout+time.Second {
				t.Errorf("event %d is sent with %s of its lease left", ev.ID, left)
			}
			deadline, ok := ctx.Deadline()
			if !ok || !deadline.Before(until) || time.Until(deadline) > d.RequestTimeout {
				t.Errorf("the request of event %d ends at %s, its lease at %s", ev.ID, deadline, until)
			}
			return took(time.Second)(ctx, ev)
		}))
		d.Parallel, d.BatchSize, d.Once = 1, 5, true
		d.Observer.Settled = func(r outbox.Report) {
			if r.Outcome.Refund {
				released++
			}
		}
		end := runFor(t, d, time.Hour)
		if end.summary.Delivered != 10 || end.summary.Sent != 10 || end.summary.Released != released || released == 0 {
			t.Errorf("summary %+v, %d released; want 10 sent, 10 delivered, some released", counts(end.summary), released)
		}
		for _, r := range rows.rows {
			if r.Attempts != 1 {
				t.Errorf("event %d has %d attempts, want 1", r.ID, r.Attempts)
			}
		}
	})
}

func TestRequestTimeoutIsARetryOfKindTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(1)
		d := newLoop(rows, newGauge(hang))
		var got []outbox.Outcome
		d.Observer.Settled = func(r outbox.Report) { got = append(got, r.Outcome) }
		runFor(t, d, 6*time.Second)
		if len(got) != 1 || got[0].Status != outbox.Pending || got[0].ErrorKind != outbox.KindTimeout ||
			got[0].Delay != 2*time.Second || got[0].Latency != 5*time.Second {
			t.Errorf("outcomes %+v, want one retry of kind timeout after 5s", got)
		}
	})
}

func TestStopGivesBackTheUnsentAndWaitsForTheSent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(20)
		rows.roundTrip = 10 * time.Millisecond
		d := newLoop(rows, newGauge(took(4*time.Second)))
		d.Parallel, d.BatchSize = 2, 10
		stopped := time.Now().Add(time.Second)
		end := runFor(t, d, time.Second)
		if got, want := counts(end.summary), (totals{Sent: 2, Delivered: 2, Released: 8}); got != want || end.err != nil {
			t.Errorf("Run() = %+v, %v; want %+v", got, end.err, want)
		}
		if end.after < 4*time.Second || end.after > 4100*time.Millisecond {
			t.Errorf("the run ended after %s, want soon after 4s", end.after)
		}
		for _, tn := range rows.turns {
			if tn.at.After(stopped) && tn.want.N > 0 {
				t.Errorf("a claim %s after the stop", tn.at.Sub(stopped))
			}
		}
		for _, r := range rows.rows {
			sent := r.status == outbox.Delivered
			if !sent && (r.status != outbox.Pending || r.Attempts != 0 || r.due.Sub(stopped) > 20*time.Millisecond) {
				t.Errorf("event %d: %s after %d attempts, due %s after the stop; want pending, unattempted, at once",
					r.ID, r.status, r.Attempts, r.due.Sub(stopped))
			}
		}
	})
}

// totals are a summary's numbers.
type totals struct{ Sent, Delivered, Retried, Failed, Dead, Released, Lost int }

func counts(s outbox.Summary) totals {
	return totals{s.Sent, s.Delivered, s.Retried, s.Failed, s.Dead, s.Released, s.Lost}
}

func TestClaimUnderWayAtTheStopIsGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(5)
		rows.roundTrip = 100 * time.Millisecond
		end := runFor(t, newLoop(rows, newGauge(nil)), 70*time.Millisecond)
		if got, want := counts(end.summary), (totals{Released: 5}); got != want || end.err != nil {
			t.Errorf("Run() = %+v, %v; want %+v", got, end.err, want)
		}
		if n := rows.count(outbox.Pending); n != 5 {
			t.Errorf("%d events are pending, want 5", n)
		}
	})
}

func TestGraceCutsOffWithoutFailing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(3)
		d := newLoop(rows, newGauge(hang))
		d.Policy.MaxAttempts, d.Grace = 1, 3*time.Second
		end := runFor(t, d, time.Second)
		if end.err != nil || end.after < 4*time.Second || end.after > 4010*time.Millisecond {
			t.Errorf("Run() = %v after %s, want nil after 4s", end.err, end.after)
		}
		for _, r := range rows.rows {
			if r.status != outbox.Pending || r.kind != outbox.KindShutdown || r.Attempts != 1 || r.due.After(time.Now()) {
				t.Errorf("event %d: %s, kind %s, %d attempts, due %s; want pending, shutdown, 1, at once",
					r.ID, r.status, r.kind, r.Attempts, r.due)
			}
		}
	})
}

// An answer that came in before the grace ended counts, however late it is settled.
func TestStopSettlesTheResultsOfASourceThatWasAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(4)
		began := time.Now()
		rows.fault = func(int) fault { // away for five seconds around the deliveries' end
			if at := time.Since(began); at > 14*time.Second && at < 19*time.Second {
				return away
			}
			return none
		}
		d := newLoop(rows, newGauge(took(15*time.Second)))
		d.RequestTimeout = 16 * time.Second
		end := runFor(t, d, time.Second)
		if got, want := counts(end.summary), (totals{Sent: 4, Delivered: 4}); got != want || end.err != nil {
			t.Errorf("Run() = %+v, %v; want %+v", got, end.err, want)
		}
	})
}

func TestStopGivesUpOnASourceThatStaysAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(4)
		rows.fault = func(n int) fault {
			if n > 1 {
				return away
			}
			return none
		}
		end := runFor(t, newLoop(rows, newGauge(took(2*time.Second))), time.Second)
		if !errors.Is(end.err, errAway) || !strings.Contains(end.err.Error(), "4 results") {
			t.Errorf("Run() = %v, want errAway and the number of results", end.err)
		}
		if end.after < 10*time.Second || end.after > 15*time.Second {
			t.Errorf("the run ended after %s, want 10s after the first failure", end.after)
		}
	})
}

func TestStopGivesUpOnARowThatStaysLocked(t *testing.T) {
	t.Parallel()
	for _, once := range []bool{false, true} {
		t.Run(fmt.Sprint("once ", once), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rows := newTable(4)
				d := newLoop(rows, newGauge(func(context.Context, outbox.Event) error {
					rows.mu.Lock()
					defer rows.mu.Unlock()
					rows.locked = func(id int64) bool { return id == 2 }
					return nil
				}))
				d.Once = once
				end := runFor(t, d, 20*time.Second)
				if got, want := counts(end.summary), (totals{Sent: 4, Delivered: 3}); got != want {
					t.Errorf("Run() = %+v, want %+v", got, want)
				}
				if end.err == nil || !strings.Contains(end.err.Error(), "1 results") {
					t.Errorf("Run() = %v, want the number of results that were not written", end.err)
				}
				if end.after > 35*time.Second {
					t.Errorf("the run ended after %s", end.after)
				}
			})
		})
	}
}

func TestStopWithNothingUndoneIsCleanWhileTheSourceIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(0)
		rows.fault = func(int) fault { return away }
		end := runFor(t, newLoop(rows, newGauge(nil)), 5*time.Second)
		if end.err != nil || end.after > 5100*time.Millisecond {
			t.Errorf("Run() = %v after %s, want nil at once", end.err, end.after)
		}
	})
}

func TestSecondSignalEndsAtOnceAndSettlesWhatIsKnown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(30)
		rows.roundTrip = 10 * time.Millisecond
		d := newLoop(rows, newGauge(hang))
		d.RequestTimeout = 20 * time.Second
		stop, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		kill, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		summary, err := d.Run(stop, kill)
		if took := time.Since(began) - 2*time.Second; err != nil || took > 50*time.Millisecond {
			t.Errorf("Run() = %v, %s after the second signal; want nil, at once", err, took)
		}
		if n := rows.count(outbox.Pending); n != 30 || summary.Sent != 10 || summary.Released != 20 {
			t.Errorf("%d events are pending, summary %+v; want 30, 10 cut off, 20 given back", n, counts(summary))
		}
	})
}

func TestSecondSignalDoesNotWaitForADeafSink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(2)
		d := newLoop(rows, newGauge(func(context.Context, outbox.Event) error {
			time.Sleep(time.Minute) // ctx or not
			return nil
		}))
		kill, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		_, err := d.Run(kill, kill)
		if took := time.Since(began) - 2*time.Second; took > 2100*time.Millisecond {
			t.Errorf("Run() took %s after the second signal", took)
		}
		if err == nil || strings.Contains(err.Error(), "%!") || !strings.Contains(err.Error(), "2 results") {
			t.Errorf("Run() = %v, want the number of results that were not written", err)
		}
		time.Sleep(time.Minute) // for the sink's end
	})
}

func TestOnceEndsWhenNothingIsDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(250)
		rows.insert(time.Second) // the future's business
		d := newLoop(rows, newGauge(took(time.Millisecond)))
		d.Once = true
		end := runFor(t, d, time.Hour)
		if end.summary.Delivered != 250 || end.err != nil || end.after > 500*time.Millisecond {
			t.Errorf("delivered %d in %s: %v; want 250, at once", end.summary.Delivered, end.after, end.err)
		}
	})
}

func TestOnceWaitsForItsOwnRetriesWithinWait(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		wait      time.Duration
		failures  int
		delivered int
		after     time.Duration
	}{
		{"the first", 10 * time.Second, 1, 1, 2 * time.Second},
		{"three in a row", 10 * time.Second, 3, 1, 14 * time.Second},
		{"one beyond it", 10 * time.Second, 4, 0, 14 * time.Second},
		{"none", 0, 1, 0, 0},
		{"to the instant", 2 * time.Second, 1, 1, 2 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rows := newTable(1)
				d := newLoop(rows, newGauge(func(_ context.Context, ev outbox.Event) error {
					if ev.Attempts <= tt.failures {
						return errors.New("not yet")
					}
					return nil
				}))
				d.Once, d.Wait = true, tt.wait
				end := runFor(t, d, time.Hour)
				if end.summary.Delivered != tt.delivered || end.err != nil {
					t.Errorf("delivered %d: %v; want %d", end.summary.Delivered, end.err, tt.delivered)
				}
				if end.after < tt.after || end.after > tt.after+200*time.Millisecond {
					t.Errorf("the run ended after %s, want %s", end.after, tt.after)
				}
			})
		})
	}
}

// What a run gives back is due at once: the run that says so must not end before it.
func TestOnceSendsWhatItGaveBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(2)
		rows.lease = 7 * time.Second
		d := newLoop(rows, newGauge(took(3*time.Second)))
		d.Once, d.Parallel = true, 1
		if s := runFor(t, d, time.Hour).summary; s.Delivered != 2 || s.Released == 0 {
			t.Errorf("summary %+v, want 2 delivered and one released before", counts(s))
		}
	})
}

func TestOncePostponedEventIsSentWithinWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(1)
		var calls atomic.Int32
		d := newLoop(rows, newGauge(func(context.Context, outbox.Event) error {
			if calls.Add(1) <= 3 {
				return outbox.Postpone(time.Second)
			}
			return nil
		}))
		d.Once, d.Policy.MaxAttempts = true, 1
		end := runFor(t, d, time.Hour)
		if end.summary.Delivered != 1 || rows.rows[0].Attempts != 1 || end.after < 3*time.Second {
			t.Errorf("summary %+v, %d attempts after %s; want delivered at the first attempt after 3s",
				counts(end.summary), rows.rows[0].Attempts, end.after)
		}
	})
}

func TestMaxEventsIsExact(t *testing.T) {
	t.Parallel()
	for _, once := range []bool{false, true} {
		for _, limit := range []int{1, 7, 10, 25, 50} {
			t.Run(fmt.Sprintf("%d, once %v", limit, once), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					rows := newTable(50)
					rows.roundTrip = time.Millisecond
					sink := newGauge(func(ctx context.Context, ev outbox.Event) error {
						_ = took(time.Duration(ev.ID%5)*20*time.Millisecond)(ctx, ev)
						if ev.ID%3 == 0 {
							return errors.New("no")
						}
						return nil
					})
					d := newLoop(rows, sink)
					d.Once, d.MaxEvents = once, limit
					d.Policy.Backoff.Base = time.Millisecond
					end := runFor(t, d, time.Hour)
					if sink.total != limit || end.summary.Sent != limit || end.err != nil || end.after > time.Minute {
						t.Errorf("%d events sent, summary says %d, after %s: %v; want %d",
							sink.total, end.summary.Sent, end.after, end.err, limit)
					}
					var attempts int
					for _, r := range rows.rows {
						attempts += r.Attempts
					}
					if n := rows.count(outbox.InProgress); n != 0 || attempts != limit {
						t.Errorf("%d events are still claimed, %d attempts counted; want 0, %d", n, attempts, limit)
					}
				})
			})
		}
	}
}

func TestTroubleIsToldOnceAndLosesNothing(t *testing.T) {
	t.Parallel()
	for _, kind := range []fault{away, lostReply} {
		t.Run([]string{"", "away", "reply lost"}[kind], func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rows := newTable(400)
				rows.roundTrip = time.Millisecond
				began := time.Now()
				rows.fault = func(int) fault {
					if at := time.Since(began); at > time.Second && at < 13*time.Second {
						return kind
					}
					return none
				}
				sink := newGauge(took(100 * time.Millisecond))
				d := newLoop(rows, sink)
				var told []string
				d.Observer.Trouble = func(err error) { told = append(told, err.Error()) }
				d.Observer.Recovered = func() { told = append(told, "recovered") }
				end := runFor(t, d, time.Minute+30*time.Second)
				if want := []string{errAway.Error(), "recovered"}; !slices.Equal(told, want) {
					t.Errorf("told %q, want %q", told, want)
				}
				if end.summary.Delivered != 400 || end.summary.Lost != 0 || end.err != nil || sink.total != 400 {
					t.Errorf("summary %+v after %d calls: %v; want 400 delivered, none lost", counts(end.summary), sink.total, end.err)
				}
				failed := slices.DeleteFunc(slices.Clone(rows.turns), func(tn turn) bool { return tn.fault == none })
				within(t, "waits", gaps(failed), []time.Duration{101, 201, 401, 801, 1601, 2001, 2001}) // the round trip included
			})
		})
	}
}

func TestSourceIsTriedAtOnceAfterItsReturn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(10)
		began := time.Now()
		rows.fault = func(int) fault {
			if time.Since(began) < time.Minute {
				return away
			}
			return none
		}
		var delivered time.Duration
		d := newLoop(rows, newGauge(nil))
		d.Observer.Settled = func(outbox.Report) { delivered = time.Since(began) }
		runFor(t, d, 2*time.Minute)
		if delivered < time.Minute || delivered > time.Minute+3*time.Second {
			t.Errorf("delivered after %s, want within 3s of the source's return after 1m", delivered)
		}
	})
}

func TestOnceWithTheSourceAwayReturnsItsError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(1)
		rows.fault = func(int) fault { return away }
		d := newLoop(rows, newGauge(nil))
		d.Once = true
		if end := runFor(t, d, time.Hour); !errors.Is(end.err, errAway) || end.after > time.Second {
			t.Errorf("Run() = %v after %s, want errAway at once", end.err, end.after)
		}
	})
}

func TestLockedRowDelaysOnlyItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(500)
		rows.roundTrip = time.Millisecond
		began := time.Now()
		var claimed atomic.Bool
		rows.locked = func(id int64) bool { return id == 3 && claimed.Load() && time.Since(began) < 8*time.Second }
		when := map[int64]time.Duration{}
		d := newLoop(rows, newGauge(func(ctx context.Context, ev outbox.Event) error {
			claimed.Store(true)
			return took(10*time.Millisecond)(ctx, ev)
		}))
		d.Once = true
		d.Observer.Settled = func(r outbox.Report) { when[r.Event.ID] = time.Since(began) }
		end := runFor(t, d, time.Hour)
		if end.summary.Delivered != 500 || end.err != nil {
			t.Errorf("summary %+v: %v, want 500 delivered", counts(end.summary), end.err)
		}
		for id, at := range when {
			if id != 3 && at > 2*time.Second {
				t.Errorf("event %d was settled after %s", id, at)
			}
		}
		if when[3] < 8*time.Second || when[3] > 9500*time.Millisecond {
			t.Errorf("the locked event was settled after %s, want soon after 8s", when[3])
		}
	})
}

// An outcome is still unsettled when the lease lapses and the same loop claims the event again: the
// old outcome changes nothing, the new one counts.
func TestEventComesBackToTheLoopThatHoldsItsOldOutcome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows := newTable(1)
		rows.lease = 7 * time.Second
		began := time.Now()
		var calls atomic.Int32
		rows.locked = func(int64) bool { return calls.Load() > 0 && time.Since(began) < 7100*time.Millisecond }
		d := newLoop(rows, newGauge(func(_ context.Context, ev outbox.Event) error {
			if calls.Add(1) == 1 {
				return errors.New("first")
			}
			return nil
		}))
		d.PollInterval = 20 * time.Millisecond
		var reports []string
		d.Observer.Settled = func(r outbox.Report) {
			reports = append(reports, fmt.Sprint(r.Outcome.Status, " lost ", r.Lost, " attempt ", r.Event.Attempts))
		}
		end := runFor(t, d, 30*time.Second)
		slices.Sort(reports)
		want := []string{"delivered lost false attempt 2", "pending lost true attempt 1"}
		if !slices.Equal(reports, want) || end.err != nil {
			t.Errorf("reports %q, error %v; want %q", reports, end.err, want)
		}
		if r := rows.rows[0]; r.status != outbox.Delivered || r.Attempts != 2 {
			t.Errorf("the event is %s after %d attempts, want delivered after 2", r.status, r.Attempts)
		}
	})
}

// Whatever goes wrong between the loop and its source, every event is delivered or spends its
// attempts, and a sink is called no more often than attempts are counted.
func TestAnyMixOfFaultsLosesNothing(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { mixFaults(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func mixFaults(t *testing.T, r *rand.Rand) {
	rows := newTable(100)
	rows.lease, rows.roundTrip = 7*time.Second, time.Duration(r.IntN(20))*time.Millisecond
	rows.fault = func(int) fault { return fault(max(0, r.IntN(12)-9)) }
	began := time.Now()
	rows.locked = func(id int64) bool {
		return id%9 == 0 && rows.rows[id-1].status == outbox.InProgress && time.Since(began) < 6*time.Second
	}
	slow := int64(1 + r.IntN(50))
	sink := newGauge(func(ctx context.Context, ev outbox.Event) error {
		switch {
		case ev.ID%slow == 0 && ev.Attempts == 1:
			return hang(ctx, ev)
		case ev.ID%7 == 0 && ev.Attempts < 3:
			return errors.New("not yet")
		case ev.ID%31 == 0:
			return outbox.Permanent(errors.New("never"))
		}
		return took(time.Duration(ev.ID%40)*time.Millisecond)(ctx, ev)
	})
	d := newLoop(rows, sink)
	d.BatchSize, d.Parallel = 1+r.IntN(60), 1+r.IntN(20)
	end := runFor(t, d, 10*time.Minute)
	if rows.unsettled > d.BatchSize {
		t.Errorf("%d events were claimed and unsettled, want at most %d", rows.unsettled, d.BatchSize)
	}
	for _, row := range rows.rows {
		if !row.status.Final() || row.status == outbox.Failed {
			t.Errorf("event %d is %s", row.ID, row.status)
		}
		if calls := sink.calls[row.ID]; calls == 0 || calls > row.Attempts {
			t.Errorf("event %d: %d calls, %d attempts", row.ID, calls, row.Attempts)
		}
	}
	s := end.summary
	if s.Sent != sink.total || s.Sent != s.Delivered+s.Retried+s.Dead+s.Failed+s.Lost {
		t.Errorf("summary %+v does not add up to %d calls", counts(s), sink.total)
	}
}
