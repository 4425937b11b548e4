// Package webhook delivers events as HTTP POST requests, and verifies them for receivers.
//
// One [Sink] serves one destination with a transport of its own: it follows no redirect, never
// sends a request again behind the caller's back, reads little of an answer, and checks every
// address at the moment it is dialled. What an answer means is the table in answer.go, what a
// broken connection means the one in failure.go. Receivers use [Verify].
//
// The headers of a request, beside those of the configuration:
//
//	Content-Type          application/json; see [Payload] for the other format
//	User-Agent            outboxctl/<version>
//	X-Idempotency-Key     the event's key, the same for every attempt
//	X-Outbox-Attempt      1 for the first
//	X-Outbox-Event-Type   the event's type; bytes that are not visible ASCII, and %, as %XX; left out
//	                      beyond 1 KB
//	X-Signature           sha256=<hex HMAC-SHA256 of the body>, by the first secret
//	webhook-id            the event's key (Standard Webhooks)
//	webhook-timestamp     when this attempt was sent, in Unix seconds
//	webhook-signature     v1,<base64 HMAC-SHA256 of id.timestamp.body>, one for each secret
//	traceparent, tracestate  from the row's headers
//
// No other header of a row travels, so a row cannot forge one.
//
// The error kinds that the package gives:
//
//	http         an answer other than 2xx; the code tells which
//	redirect     3xx, which is never followed
//	timeout      no connection, or no complete answer headers, in time
//	dns          the name does not resolve
//	refused      the connection was refused
//	unreachable  no route to the address
//	reset        the connection broke
//	eof          the connection was closed before the answer's headers were complete
//	protocol     the answer is not HTTP, or its headers are too large
//	connect      any other failure before a connection stood
//	blocked      the address must not be dialled; see [Config].AllowPrivate
//	canceled     the caller gave up
//	invalid      the event makes no request
//	tls:expired, tls:unknown_authority, tls:wrong_name, tls:bad_certificate, tls:version,
//	tls:client_certificate, tls:not_tls, tls:handshake
package webhook
