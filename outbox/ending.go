package outbox

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"time"
)

// stop ends claiming and gives back what is unsent.
func (l *loop) stop() {
	l.stopping = true
	l.releaseReady()
}

// done reports whether the run is over.
func (l *loop) done() bool {
	switch {
	case l.exchanging || l.sending > 0:
		return false
	case l.ending() && l.stuck():
		return l.outOfPatience()
	case l.undone() > 0:
		return false
	case l.stopping:
		return true
	case l.MaxEvents > 0 && l.summary.Sent >= l.MaxEvents:
		return true
	case l.Once && l.keptOff():
		return true
	}
	return l.Once && l.idle && !l.awaited()
}

// ending reports whether the loop will not wait for ever for others.
func (l *loop) ending() bool { return l.stopping || l.Once }

// undone is how many claimed events are not settled, those being sent left out.
func (l *loop) undone() int { return l.unsent + len(l.finished) + len(l.held) }

// stuck reports whether only others can get the loop on: the source is away, or all that is left
// are outcomes that it does not take.
func (l *loop) stuck() bool {
	return l.failure != nil || len(l.held) > 0 && len(l.held) == l.undone()
}

// outOfPatience reports whether a loop that is stuck has waited long enough for its results to be
// written. Without any there is nothing to wait for.
func (l *loop) outOfPatience() bool {
	if l.undone() > 0 && l.patience.IsZero() {
		l.patience = time.Now().Add(lastSettles)
	}
	if l.undone() > 0 && time.Now().Before(l.patience) {
		return false
	}
	l.giveUp(l.undone(), errLocked)
	return true
}

// Why results are not written, when the source has not said it.
var (
	errLocked = errors.New("their rows are locked by others")
	errKilled = errors.New("no time left")
)

// giveUp leaves what is undone to the leases: they lapse. A stop with nothing undone is a clean one,
// whatever the source's state.
func (l *loop) giveUp(undone int, why error) {
	switch {
	case undone > 0:
		l.failure = fmt.Errorf("%d results not written, their events will be sent again: %w", undone, cmp.Or(l.failure, l.refusal, why))
	case l.stopping:
		l.failure = nil
	}
}

// awaited reports whether a retry of this run is due soon enough to stay for.
func (l *loop) awaited() bool {
	now := time.Now()
	for len(l.retries) > 0 && !now.Before(l.retries[0]) {
		heap.Pop(&l.retries)
		l.pollAt, l.idle = time.Time{}, false // look for it once more
	}
	return !l.idle || len(l.retries) > 0 && l.retries[0].Sub(now) <= l.Wait
}

// kill cuts deliveries off and settles what is known, without much patience.
func (l *loop) kill() {
	l.cut()
	giveUp := time.After(killWait)
	for l.sending > 0 || l.exchanging || l.undone() > 0 {
		l.exchange()
		select {
		case out := <-l.results:
			l.finish(out)
		case t := <-l.turns:
			l.settle(t)
		case <-time.After(l.sleep()):
		case <-giveUp:
			l.giveUp(l.sending+l.undone(), errKilled)
			return
		}
	}
}

// dueTimes is a heap, the earliest first.
type dueTimes []time.Time

func (h dueTimes) Len() int           { return len(h) }
func (h dueTimes) Less(i, j int) bool { return h[i].Before(h[j]) }
func (h dueTimes) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueTimes) Push(x any)        { *h = append(*h, x.(time.Time)) }
func (h *dueTimes) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
