package check

import (
	"slices"
	"strings"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// judgeBytes: all attempts of an event at a destination have the same body, with the payload that the producer wrote,
// under the event's own key and sequence, and signed with a secret of its time.
func judgeBytes(s *story, v *verdict) {
	for _, l := range s.ordered {
		body := map[string]*request{}
		for _, r := range l.requests {
			if r.At.IsZero() || s.dests[r.Dest] == nil {
				continue
			}
			v.saw(1)
			if first := body[r.Dest]; first != nil && first.Body != r.Body && !l.edited {
				v.wrong("request %d of event %s (id %d) has another body than request %d", r.N, r.Key, l.id, first.N)
			}
			body[r.Dest] = r
			s.judgePayload(l, r, v)
			s.judgeSignature(r.Request, v)
		}
		s.judgeStored(l, v)
	}
}

func (s *story) judgePayload(l *life, r *request, v *verdict) {
	switch {
	case l.write != nil && r.Payload != l.write.Payload && !l.edited:
		v.wrong("request %d of event %s (id %d) has the payload %.12s; its producer wrote %.12s", r.N, r.Key, l.id, r.Payload, l.write.Payload)
	case r.WebhookID != r.Key:
		v.wrong("request %d of event %s (id %d) has the webhook-id %q", r.N, r.Key, l.id, r.WebhookID)
	case r.Sequence != 0 && r.Sequence != l.sequence && l.row != nil:
		v.wrong("request %d of event %s (id %d) has the sequence %d; it is %d", r.N, r.Key, l.id, r.Sequence, l.sequence)
	}
}

// judgeStored: the payload in the table is still the producer's.
func (s *story) judgeStored(l *life, v *verdict) {
	if l.row == nil || l.write == nil || l.edited {
		return
	}
	v.saw(1)
	if l.row.Payload != l.write.Payload {
		v.wrong("event %s (id %d) has the payload %.12s in the table; its producer wrote %.12s", l.key, l.id, l.row.Payload, l.write.Payload)
	}
}

func (s *story) judgeSignature(r *history.Request, v *verdict) {
	if s.Secrets == nil {
		return
	}
	names := s.inForce(r)
	valid := func(name string) bool { return slices.Contains(names, name) }
	switch {
	case r.Hmac == "" || !slices.ContainsFunc(r.Signed, valid):
		v.wrong("request %d of event %s at %s has no valid signature (X-Signature %q, webhook-signature %q); its secrets were %s",
			r.N, r.Key, clock(r.Began), r.Hmac, strings.Join(r.Signed, " "), strings.Join(names, " "))
	case !valid(r.Hmac) || slices.ContainsFunc(r.Signed, func(name string) bool { return !valid(name) }):
		v.wrong("request %d of event %s at %s is signed with %s %s; its secrets were %s",
			r.N, r.Key, clock(r.Began), r.Hmac, strings.Join(r.Signed, " "), strings.Join(names, " "))
	}
}

// inForce names the secrets that a request may have been signed with: it may have been on its way for a while.
func (s *story) inForce(r *history.Request) (names []string) {
	for _, secret := range s.Secrets {
		if !secret.Began.After(r.Began) && (secret.Gone.IsZero() || !secret.Gone.Before(r.Began.Add(-s.Setup.Lease))) {
			names = append(names, secret.Name)
		}
	}
	return names
}
