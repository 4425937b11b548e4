package simulation_test

import (
	"context"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
	"github.com/outboxctl/outboxctl/outbox/gate"
	"github.com/outboxctl/outboxctl/outbox/outboxtest/twin"
)

// What is promised, as it is checked at each step. leaseMargin is what a request leaves of its lease.
const leaseMargin = time.Second

// sends is called as a request begins.
func (p *process) sends(ctx context.Context, ev outbox.Event) *call {
	now := time.Now()
	c := p.claims[key{ev.ID, ev.Lease}]
	handed := now // when the loop decided to
	if c != nil && !c.handed.IsZero() {
		handed = c.handed
	}
	made := &call{claim: c, began: now, answer: p.answerTo(ev.ID, len(p.calls[ev.ID]))}
	p.note(ev.ID, "%s: event %d is sent, attempt %d", p, ev.ID, ev.Attempts)
	p.sending++
	row := p.table.Row(ev.ID)
	deadline, limited := ctx.Deadline()
	switch {
	case c == nil || !c.known || c.by != p:
		p.fail(ev.ID, "%s sends event %d, which it has not claimed", p, ev.ID)
	case c.call != nil:
		p.fail(ev.ID, "%s sends event %d twice under one lease", p, ev.ID)
	case row.Lease != ev.Lease || !row.Leased(now):
		p.fail(ev.ID, "%s sends event %d without a lease", p, ev.ID)
	case row.LeaseUntil.Sub(handed) < p.plan.timeout+leaseMargin:
		p.fail(ev.ID, "%s sends event %d with %s of its lease left", p, ev.ID, row.LeaseUntil.Sub(now))
	case !limited || !deadline.Before(row.LeaseUntil) || deadline.Sub(now) > p.plan.timeout:
		p.fail(ev.ID, "%s sends event %d until %s, its lease ends %s", p, ev.ID, deadline.Sub(p.world.began), row.LeaseUntil.Sub(p.world.began))
	case c.due.After(now):
		p.fail(ev.ID, "%s sends event %d %s early", p, ev.ID, c.due.Sub(now))
	case !p.stoppedAt.IsZero() && p.stoppedAt.Before(handed):
		p.fail(ev.ID, "%s sends event %d after its stop", p, ev.ID)
	case p.sending > p.plan.parallel:
		p.fail(ev.ID, "%s sends %d events at once, it may %d", p, p.sending, p.plan.parallel)
	case p.isPaused(ev.TenantID, false, handed):
		p.fail(ev.ID, "%s sends event %d, which is paused", p, ev.ID)
	case p.fate[ev.ID] == oversize || p.fate[ev.ID] == invalid || p.fate[ev.ID] == unreadable:
		p.fail(ev.ID, "%s sends event %d, which cannot be sent", p, ev.ID)
	case ev.Attempts-p.shutdowns(ev.ID) > p.plan.policy.MaxAttempts:
		p.fail(ev.ID, "%s sends event %d, which was claimed %d times", p, ev.ID, ev.Attempts)
	}
	p.asksBreaker(ev.ID, handed)
	p.keepsOrder(c, row)
	if c != nil {
		c.call, c.unread = made, false
	}
	p.calls[ev.ID] = append(p.calls[ev.ID], made)
	p.starts = append(p.starts, handed)
	p.tenants[ev.TenantID] = append(p.tenants[ev.TenantID], handed)
	return made
}

// asksBreaker: nothing is sent while it is open, and one event when it is half open.
func (p *process) asksBreaker(id int64, handed time.Time) {
	if handed.Before(p.changed) {
		return
	}
	switch p.breaker {
	case gate.Open:
		if p.changed.Before(handed) {
			p.fail(id, "%s sends event %d while its breaker is open", p, id)
		}
	case gate.HalfOpen:
		if p.probes++; p.probes > 1 {
			p.fail(id, "%s tries %d events at once with its breaker half open", p, p.probes)
		}
	}
}

// keepsOrder: of an aggregate no two events are under way, and none before an earlier one has ended.
func (p *process) keepsOrder(c *claim, row *twin.Row) {
	if !p.plan.queue.Ordered || c == nil {
		return
	}
	for _, other := range p.table.Rows {
		if other == row || other.Aggregate() != row.Aggregate() {
			continue
		}
		for _, made := range p.calls[other.ID] {
			if made.ended.IsZero() && !made.claim.by.dead {
				p.fail(row.ID, "%s sends event %d while %s sends event %d of its aggregate", p, row.ID, made.claim.by, other.ID)
			}
		}
		if other.ID < row.ID && !p.hasPassed(c, other) {
			p.fail(row.ID, "%s sends event %d before event %d of its aggregate, which is %s", p, row.ID, other.ID, other.Status)
		}
	}
}

// hasPassed reports whether an event has ended, so that the claim may go on behind it. What a worker has
// in the same claim it need not have settled.
func (p *process) hasPassed(c *claim, other *twin.Row) bool {
	dead := other.Status == outbox.Failed || other.Status == outbox.DeadLetter
	if !other.Open() {
		return !dead || !p.plan.queue.Hold
	}
	before := p.claims[key{other.ID, c.lease}]
	if before == nil || before.settled {
		return false
	}
	switch made := before.call; {
	case made == nil:
		fate := p.fate[other.ID]
		unsendable := fate == oversize || fate == invalid || fate == unreadable || before.ev.Attempts > p.plan.policy.MaxAttempts
		return unsendable && !p.plan.queue.Hold
	case made.ended.IsZero():
		return false
	case made.taken():
		return true
	case made.postponed() || made.cut == context.Canceled:
		return false
	default:
		permanent := made.cut == nil && made.answer.verdict() == outbox.VerdictPermanent
		return !p.plan.queue.Hold && (permanent || before.ev.Attempts >= p.plan.policy.MaxAttempts)
	}
}

// answered is called as a request ends.
func (p *process) answered(c *call, cut error) {
	c.ended, c.cut = time.Now(), cut
	if p.breaker == gate.HalfOpen && c.began.After(p.changed) && (c.postponed() || cut == context.Canceled) {
		p.probes-- // says nothing
	}
	if !p.dead {
		p.note(c.claim.id, "%s: event %d: %s", p, c.claim.id, c)
	}
}

// String is the answer, for the trace.
func (c *call) String() string {
	switch {
	case c.cut != nil:
		return "cut off, " + c.cut.Error()
	case c.answer.err == nil:
		return "taken"
	}
	return [...]string{"failed", "connection closing", "rejected", "refused for good", "postponed"}[c.answer.verdict()]
}

// offers checks the outcomes that a dispatcher wants settled.
func (p *process) offers(outs []outbox.Outcome) {
	for _, out := range outs {
		k := key{out.ID, out.Lease}
		c := p.claims[k]
		switch {
		case c == nil || c.by != p || !c.known:
			p.fail(out.ID, "%s settles event %d, which it has not claimed", p, out.ID)
			continue
		case c.sure:
			p.fail(out.ID, "%s settles event %d again", p, out.ID)
		case c.call != nil && !c.back:
			p.fail(out.ID, "%s settles event %d before its answer", p, out.ID)
		}
		if why := p.mistake(c, out); why != "" {
			p.fail(out.ID, "%s settles event %d as %s (%s, refund %v, after %s): %s", p, out.ID, out.Status, out.ErrorKind, out.Refund, out.Delay, why)
		}
		c.offered = true
		delete(p.hand, k)
	}
}

// mistake says what is wrong with an outcome.
func (p *process) mistake(c *claim, out outbox.Outcome) string {
	if c.call == nil {
		return p.mistakeUnsent(c, out)
	}
	n, most, made := c.ev.Attempts, p.plan.policy.MaxAttempts, c.call
	switch {
	case made.cut == context.Canceled:
		return unless(out.Status == outbox.Pending && out.Delay == 0 && !out.Refund && out.ErrorKind == outbox.KindShutdown,
			"it was cut off by the stop")
	case made.taken():
		return unless(out.Status == outbox.Delivered && !out.Refund, "it was taken")
	case made.postponed():
		return unless(out.Status == outbox.Pending && out.Refund && out.Delay == made.answer.err.After, "it was postponed")
	case out.Refund:
		return "it was sent: the attempt counts"
	case made.cut == nil && made.answer.verdict() == outbox.VerdictPermanent:
		return unless(out.Status == outbox.DeadLetter, "it was refused for good")
	case n >= most:
		return unless(out.Status == outbox.Failed, "its attempts are spent")
	case out.Status != outbox.Pending:
		return "it has attempts left"
	}
	return p.mistimed(made, n, out.Delay)
}

func unless(ok bool, why string) string {
	if ok {
		return ""
	}
	return why
}

// mistakeUnsent judges the outcome of an event that was not sent: it costs no attempt.
func (p *process) mistakeUnsent(c *claim, out outbox.Outcome) string {
	shutdowns := p.shutdowns(c.id)
	crashed := c.ev.Attempts-shutdowns > p.plan.policy.MaxAttempts
	switch fate := p.fate[c.id]; {
	case !out.Refund:
		return "it was not sent: the attempt is to be given back"
	case out.Status == outbox.Pending:
		return unless(out.Delay == 0 || c.unread, "it was given back, and is due at once")
	case out.Status != outbox.DeadLetter:
		return "it was not sent"
	case out.ErrorKind == outbox.KindCrashed:
		return unless(crashed, "it was not claimed too often")
	case out.ErrorKind == outbox.KindInvalid:
		return unless(fate == invalid || fate == unreadable, "it is not invalid")
	case out.ErrorKind == outbox.KindOversize:
		return unless(fate == oversize, "it is not too large")
	}
	return "there is no reason for its end"
}

// mistimed says what is wrong with the wait before the next attempt.
func (p *process) mistimed(made *call, n int, delay time.Duration) string {
	b := p.plan.policy.Backoff
	wait := b.Base
	for range n - 1 {
		wait = min(2*wait, b.Cap)
	}
	var asked time.Duration
	if made.cut == nil {
		asked = made.answer.err.After
		switch verdict := made.answer.verdict(); {
		case verdict == outbox.VerdictSlow:
			wait = b.Cap
		case verdict == outbox.VerdictBrief && n <= 2:
			wait = min(wait, 100*time.Millisecond)
		}
	}
	vary := time.Duration(float64(wait) * p.plan.policy.Jitter)
	const rounding = time.Microsecond
	least, most := max(wait-vary, asked)-rounding, max(wait+vary, asked+vary)+rounding
	if delay < least || delay > most {
		return "it waits out of bounds, which are " + least.String() + " and " + most.String()
	}
	return ""
}

// settled is called when an outcome is written.
func (w *world) settled(c *claim, out outbox.Outcome) {
	c.settled, c.out = true, out
	w.note(c.id, "%s: event %d is %s (%s, refund %v, after %s)", c.by, c.id, out.Status, out.ErrorKind, out.Refund, out.Delay)
	if out.Status.Final() {
		w.closed[c.id] = time.Now()
	}
}

// wants checks what a dispatcher asks for, by what it knows as it asks.
func (p *process) wants(want outbox.Want) {
	if want.N == 0 {
		return
	}
	now := time.Now()
	open := 0 // not offered in this exchange either
	for _, c := range p.undone {
		if !c.offered || c.waits {
			open++
		}
	}
	switch {
	case open+want.N > p.plan.batch:
		p.fail(0, "%s wants %d events and has %d, of %d at most", p, want.N, open, p.plan.batch)
	case !p.stoppedAt.IsZero() && p.stoppedAt.Before(now):
		p.fail(0, "%s claims after its stop", p)
	case p.breaker == gate.Open && p.changed.Before(now):
		p.fail(0, "%s claims while its breaker is open", p)
	case p.isPaused("", true, now):
		p.fail(0, "%s claims while everything is paused", p)
	}
	p.sharesWithFresh(want)
	for n := range p.plan.tenants {
		p.leavesRoom(tenantOf(n), want)
	}
}

// sharesWithFresh: retries in hand and those to come are not more than their share.
func (p *process) sharesWithFresh(want outbox.Want) {
	if p.plan.limits.RetryShare >= 1 {
		return
	}
	retries := 0
	for _, c := range p.hand {
		if c.ev.Attempts > 1 && !c.back {
			retries++
		}
	}
	slots := max(int(p.plan.limits.RetryShare*float64(p.plan.parallel)), 1)
	if want.Share == nil || want.Share.Retries > max(slots-retries, 0) {
		p.fail(0, "%s wants a share of %+v for retries and has %d, of %d", p, want.Share, retries, slots)
	}
}

// leavesRoom: what is wanted of a tenant is within its limits.
func (p *process) leavesRoom(tenant string, want outbox.Want) {
	room := outbox.NoLimit
	if want.Rooms != nil {
		room = want.Rooms.Each
		if own, ok := want.Rooms.Of[tenant]; ok {
			room = own
		}
	}
	if p.isPaused(tenant, false, time.Now()) && room > 0 {
		p.fail(0, "%s wants events of tenant %q, which is paused", p, tenant)
	}
	most := p.plan.limits.Tenants.Parallel
	if most == 0 {
		return
	}
	for _, c := range p.hand {
		if c.ev.TenantID == tenant && !c.back {
			most--
		}
	}
	if room > max(most, 0) {
		p.fail(0, "%s wants %d events of tenant %q, it may have %d", p, room, tenant, most)
	}
}
