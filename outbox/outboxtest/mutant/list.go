package mutant

import "slices"

const (
	claims   = "outbox/claim.go"
	settles  = "outbox/settle.go"
	flights  = "outbox/flight.go"
	routes   = "outbox/route.go"
	purges   = "outbox/purge.go"
	requests = "outbox/sink/webhook/request.go"
	sinks    = "outbox/sink/webhook/sink.go"

	core    = "outbox"
	gates   = "outbox/gate"
	webhook = "outbox/sink/webhook"
	program = "cmd/outboxctl"
)

// All are the mutants, those of the lease protocol first.
func All() []Mutant {
	return slices.Concat(protocolMutants, orderMutants, operatorMutants, wireMutants, limitMutants)
}

// Fast are five that tests find within seconds.
func Fast() []Mutant {
	fast := []string{"settle by id only", "new secrets are not used", "redirects are followed", "Retry-After overflows", "breaker never opens"}
	return slices.DeleteFunc(All(), func(m Mutant) bool { return !slices.Contains(fast, m.Name) })
}

var protocolMutants = []Mutant{
	{
		Name:   "settle by id only",
		Breaks: "a late worker overwrites what the one after it has done (G7)",
		edits: []change{{settles, `	   and o.lease = v.lease
	returning o.id, o.destination`, `	returning o.id, o.destination`}},
		storm: sleeps.shows("fence", "final", "no loss", "duplicates explained"),
		tests: testsOf(core, "TestSettleRejectsStaleLease"),
	},
	{
		Name:   "settle before send",
		Breaks: "an event is noted as delivered before it is sent, and lost if that fails (G1)",
		edits: []change{{flights, `		l.results <- l.deliver(ev)`,
			`		l.results <- Outcome{ID: ev.ID, Lease: ev.Lease, Status: Delivered, Receipt: "200", ErrorCode: 200, event: ev.Event}
		l.deliver(ev)`}},
		storm: refusals.shows("no loss", "fence", "answers"),
	},
	{
		Name:   "live leases are claimed",
		Breaks: "an event that one worker is sending is taken by another (G5, G7)",
		edits: []change{{claims, `		   and (o.lease_until is null or o.lease_until < now())/*fresh*/`,
			`		   and true/*fresh*/`}},
		storm: calm.shows("lease", "duplicates explained"),
	},
	{
		Name:   "lease is not looked at",
		Breaks: "an event is sent although its lease is nearly or long over (G5, G7)",
		edits: []change{
			{flights, `if !never && time.Until(ev.until) >= l.RequestTimeout+leaseMargin {`, `if !never {`},
			{flights, `	if last := ev.until.Add(-leaseMargin / 2); deadline.After(last) {
		deadline = last
	}
`, ``},
		},
		tests: testsOf(core, "TestTooLittleLeaseIsReleasedNotSent"),
	},
	{
		Name:   "claim through id in (…)",
		Breaks: "under some plans a claim takes more than it has room for (G5)",
		edits: []change{{claims, `	 where o.id = any (array (/*chosen*/))`, `	 where o.id in (
		select d.id
		  from visited v
		 cross join lateral (
			select i.id
			  from {schema}.outbox i
			 where i.destination = @destination
			   and i.tenant_id = v.tenant_id
			   and i.finished_at is null
			   and coalesce(i.next_attempt_at, i.available_at) <= now()
			   and (i.lease_until is null or i.lease_until < now())
			 order by coalesce(i.next_attempt_at, i.available_at), i.id
			 limit @want
			   for update skip locked) d
		 limit @want)`}},
		tests: testsOf(core, "TestClaimNeverTakesMoreThanItAsksForUnderAnyPlan"),
	},
	{
		Name:   "cursor by id",
		Breaks: "a claim goes on behind the highest id that it has seen: late commits and lapsed leases below are never found (G1, G10)",
		edits: []change{
			{"outbox/walk.go", `if w.full = fresh || w.nothing || len(w.tenants) == 0 || time.Since(w.ended) >= w.every; w.full {`,
				`if w.full = len(w.tenants) == 0; w.full {`},
			{"outbox/walk.go", `			m.due, m.id = latest, 0`, `			m.due = latest`},
			{claims, `(coalesce(o.next_attempt_at, o.available_at), o.id) > (v.due, v.id)`, `o.id > v.id`},
		},
		tests: testsOf(core, "TestFullWalkFindsWhatMarksPassOver"),
	},
	{
		Name:   "events are sent early",
		Breaks: "what is due in a second is taken for due (G3)",
		edits: []change{{claims, `		   and coalesce(o.next_attempt_at, o.available_at) <= now()
`, `		   and coalesce(o.next_attempt_at, o.available_at) <= now() + interval '1 second'
`}},
		storm: calm.shows("nothing early"),
	},
	{
		Name:   "attempts are counted by the settle",
		Breaks: "an attempt whose worker dies is not counted, so that an event that kills workers is tried for ever (G9)",
		edits: []change{
			{claims, `	       attempts = least(o.attempts, 2147483646) + 1,
`, ``},
			{claims, `o.payload is null as is_binary, o.attempts, o.created_at,`, `o.payload is null as is_binary, o.attempts + 1 as attempts, o.created_at,`},
			{settles, `	       attempts = o.attempts - v.refund,`, `	       attempts = o.attempts + 1 - v.refund,`},
		},
		storm: kills.shows("attempts"),
	},
	{
		Name:   "attempts are not given back",
		Breaks: "an event that is released unsent loses an attempt by it (G9)",
		edits:  []change{{settles, `	       attempts = o.attempts - v.refund,`, `	       attempts = o.attempts,`}},
		tests:  testsOf(core, "TestReleaseGivesTheAttemptBackAndKeepsTheKnownError"),
	},
	{
		Name:   "release keeps the lease",
		Breaks: "what a stop gives back stays leased until the lease lapses (G11)",
		edits: []change{{settles, `	   set status = v.status,
	       lease = null,
	       lease_until = null,`, `	   set status = case when v.refund = 1 and v.status = 'pending' then 'in_progress' else v.status end,
	       lease = case when v.refund = 1 and v.status = 'pending' then o.lease end,
	       lease_until = case when v.refund = 1 and v.status = 'pending' then o.lease_until end,`}},
		storm: stops.shows("stops keep results"),
	},
	{
		Name:   "settle on the cancelled context",
		Breaks: "a stop takes the results of what it cuts off with it (G11)",
		edits: []change{
			{"outbox/exchange.go", `	ctx := context.WithoutCancel(l.work)`, `	var ctx context.Context = l.work`},
			{"outbox/loop.go", `context.WithCancel(context.WithoutCancel(stop))`, `context.WithCancel(stop)`},
		},
		tests: testsOf(program, "TestStopKeepsResultsAndGivesUnsentEventsBack"),
	},
	{
		Name:   "lost reply is a lost lease",
		Breaks: "a settle that is repeated because its reply was lost counts as refused, and its result as lost (G5)",
		edits:  []change{{settles, `		if q.doubtful[out.key()] {`, `		if q.doubtful[out.key()] && out.ID == 0 {`}},
		tests:  testsOf(core, "TestLostReplyIsUnknownNotLost"),
	},
}

var orderMutants = []Mutant{
	{
		Name:   "retries do not hold their aggregate",
		Breaks: "an event that waits for its retry is overtaken by those behind it (G6)",
		edits: []change{{"outbox/claim_ordered.go", `		   and o.aggregate_id = v.aggregate_id
		   and o.finished_at is null` + "`", `		   and o.aggregate_id = v.aggregate_id
		   and (o.next_attempt_at is null or o.next_attempt_at <= statement_timestamp())
		   and o.finished_at is null` + "`"}},
		tests: testsOf(core, "TestOrderedClaimTakesTheLeadingRun"),
	},
	{
		Name:   "run goes on behind a failure",
		Breaks: "an event is sent although the one before it has just failed (G6)",
		edits: []change{{flights, `	case l.OnDead.goesOn(out):
		l.ready`, `	case true:
		l.ready`}},
		storm: refusals.shows("order"),
	},
	{
		Name:   "copies without a conflict clause",
		Breaks: "a copy that is there already stops the router (G1)",
		edits: []change{{routes, ` order by coalesce(o.source_id, o.id), c.destination
    on conflict (idempotency_key, destination) do nothing`, ` order by coalesce(o.source_id, o.id), c.destination`}},
		tests: testsOf(core, "TestRouterKnowsItsOwnCopies", "TestRouterEndsWhatADestinationHas"),
	},
	{
		Name:   "copies with a key of their own",
		Breaks: "a receiver behind two destinations cannot tell that two requests are one event (G4)",
		edits:  []change{{routes, `       o.idempotency_key, c.destination, o.headers, o.payload,`, `       gen_random_uuid(), c.destination, o.headers, o.payload,`}},
		storm:  calm.shows("no phantom", "no loss"),
	},
}

var operatorMutants = []Mutant{
	{
		Name:   "purge by age only",
		Breaks: "what is old is removed, delivered or not (G1, G17)",
		edits: []change{
			{"outbox/filter.go", `and o.finished_at < @f_finished::timestamptz`, `and coalesce(o.finished_at, o.created_at) < @f_finished::timestamptz`},
			{purges, `		what.Filter.Statuses = []Status{Delivered}`, `		what.Filter.Statuses = []Status{Delivered, Pending, InProgress}`},
			{purges, "	fromDone = `outbox_done\n	 where o.finished_at is not null`", "	fromDone = `outbox_done\n	 where true`"},
			{purges, `	select o.ctid, o.finished_at, o.id,`, `	select o.ctid, coalesce(o.finished_at, o.created_at) as finished_at, o.id,`},
			{purges, `	   and o.finished_at < @before::timestamptz
	   and (o.finished_at, o.id) > (@at::timestamptz, @id::bigint)
	 order by o.finished_at, o.id`, `	   and coalesce(o.finished_at, o.created_at) < @before::timestamptz
	   and (coalesce(o.finished_at, o.created_at), o.id) > (@at::timestamptz, @id::bigint)
	 order by 2, o.id`},
			{purges, `	      and o.finished_at is not null/*filter*/
	      for update`, `	      and true/*filter*/
	      for update`},
		},
		tests: testsOf(core, "TestPurgeTakesWhatIsNamedAndOldAndNeverOpen"),
	},
	{
		Name:   "replay does not look at the state",
		Breaks: "two replays at once take an event twice, and one in flight is pulled from under its worker (G8, G18)",
		edits: []change{{"outbox/change.go", `case when not f.meant then 'state'
	                 when f.leased then 'in_flight'/*reasons*/ end as reason`, `case when false then 'state'/*reasons*/ end as reason`}},
		tests: testsOf(core, "TestReplaysAtOnceMoveEachEventOnce", "TestReplayJudgesRowsAsOthersLeaveThem"),
	},
	{
		Name:   "connection string in an error",
		Breaks: "a mistake in a database URL prints its password (G14)",
		edits: []change{{"commands/database.go", `fmt.Errorf("%s: %s", d.from, parseTrouble(err))`,
			`fmt.Errorf("%s %q: %s", d.from, d.text, parseTrouble(err))`}},
		tests: testsOf(program, "TestPasswordIsInNoOutput"),
	},
	{
		Name:   "new secrets are not used",
		Breaks: "after a rotation and a reload requests are signed as before (G13)",
		edits: []change{{sinks, `	if err == nil {
		s.signer.Store(&next)`, `	if err == nil && s.signer.Load() == nil {
		s.signer.Store(&next)`}},
		tests: testsOf(webhook, "TestSecretsAreReplacedWhileTheSinkRuns"),
	},
}

var wireMutants = []Mutant{
	{
		Name:   "body is marshalled anew",
		Breaks: "numbers lose digits and characters are escaped on the way (G13)",
		edits: []change{
			{"outbox/envelope.go", `	"encoding/base64"`, `	"encoding/base64"
	"encoding/json"`},
			{"outbox/envelope.go", "		return append(append(dst, `\"payload\":`...), e.Payload...)", `		var value any
		_ = json.Unmarshal(e.Payload, &value)
		text, _ := json.Marshal(value)
		return append(append(dst, ` + "`\"payload\":`" + `...), text...)`},
		},
		storm: calm.shows("bytes"),
	},
	{
		Name:   "signature over the payload",
		Breaks: "what is signed is not what is sent (G13)",
		edits: []change{
			{sinks, `	ev.Payload = nil // which the body holds: a large one is not kept twice
`, ``},
			{requests, `	s.signer.Load().sign(h, key, now, body)`, `	s.signer.Load().sign(h, key, now, ev.Payload)`},
		},
		storm: calm.shows("bytes"),
	},
	{
		Name:   "redirects are followed",
		Breaks: "an event goes where its destination's answer says, and may be noted as delivered though nobody has taken it (G1)",
		edits: []change{{"outbox/sink/webhook/trip.go", `	resp, err := s.transport.RoundTrip(req)`,
			`	resp, err := (&http.Client{Transport: s.transport}).Do(req)`}},
		tests: testsOf(webhook, "TestRedirectIsNotFollowedAndNotDelivered"),
	},
	{
		Name:   "address is checked before the name is looked up",
		Breaks: "a name that leads inside is dialled",
		edits: []change{{sinks, `&net.Dialer{Timeout: c.Timeout, Control: control(guard)}`,
			`&net.Dialer{Timeout: c.Timeout}`}},
		tests: testsOf(webhook, "TestNamesAreJudgedByTheAddressThatIsDialled"),
	},
	{
		Name:   "Retry-After overflows",
		Breaks: "an answer that asks to wait for ages is asked again at once (G3)",
		edits: []change{{"outbox/sink/webhook/retryafter.go", `	if err != nil || n > uint64(maxRetryAfter/time.Second) {
		return maxRetryAfter
	}
`, `	_ = err
`}},
		tests: testsOf(webhook, "TestRetryAfterIsReadInAllItsForms"),
	},
}

var limitMutants = []Mutant{
	{
		Name:   "backoff has no cap",
		Breaks: "waits double until they are years, and then negative (G3)",
		edits: []change{{"outbox/backoff.go", `	d := b.Base
	for ; attempt > 1 && d < b.Cap; attempt-- {
		if d > b.Cap/2 {
			return b.Cap
		}
		d *= 2
	}
	return min(d, b.Cap)`, `	return b.Base << max(attempt-1, 0)`}},
		tests: testsOf(core, "TestBackoffLadder", "TestBackoffNeverOverflows"),
	},
	{
		Name:   "breaker never opens",
		Breaks: "a destination that is down costs every event its attempts (G1)",
		edits: []change{{"outbox/gate/breaker.go", `		ReadyToTrip: func(c gobreaker.Counts) bool {
`, `		ReadyToTrip: func(c gobreaker.Counts) bool {
			if b.Cooldown > 0 {
				return false
			}
`}},
		tests: testsOf(gates, "TestBreakerTriesOneEventAfterItsCooldown"),
	},
	{
		Name:   "pause is ignored",
		Breaks: "events go to a destination that an operator has paused",
		edits: []change{
			{"outbox/hold.go", `	case l.standing.For > 0:
		a = Admission`, `	case l.standing.For > 0 && l.stopping:
		a = Admission`},
			{"outbox/hold.go", `	if l.stopping || l.shut || l.standing.For > 0 {`, `	if l.stopping || l.shut {`},
		},
		tests: testsOf(core, "TestPauseStopsClaimsAndGivesBackTheUnsent"),
	},
	{
		Name:   "tenants have no limits",
		Breaks: "one tenant takes all of a destination's slots",
		edits: []change{{"outbox/room.go", "const roomSQL = `least(@want, coalesce(((select @rooms::text::jsonb) ->> v.tenant_id)::bigint, @each))`",
			"const roomSQL = `@want`"}},
		tests: testsOf(core, "TestClaimKeepsToTheRooms"),
	},
}
