// Package outbox is a transactional outbox on PostgreSQL: the store that holds events and the
// core that delivers them.
//
// A producer writes an event with [Append] in the transaction of its business change. A
// [Dispatcher] claims due events from a [Source] in batches, hands each to a [Sink], decides with a
// [Policy] what became of it, and settles the outcomes together with the next claim:
//
//	producer's tx ─► outbox ═► claim ─► deliver ─► decide ─► settle ═► outbox
//
// One row is one delivery of one event to one destination and carries its own state. A claim
// leases the row for a while; every later change by a worker names that lease, so a worker that
// lost it changes nothing. A lease that lapsed makes the event due again: there is no rescuer and
// no clock but the database's.
//
// Where to read on: event.go for the event, queue.go for the lease protocol, with its halves in
// claim.go and settle.go, policy.go for what an answer means, dispatcher.go for the loop that owns
// it all.
//
// The package neither logs nor prints; it reports to its caller by values and errors.
package outbox
