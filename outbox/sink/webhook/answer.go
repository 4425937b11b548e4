package webhook

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/outboxctl/outboxctl/outbox"
)

// The kinds of an answer that does not take the event.
const (
	kindHTTP     = "http"
	kindRedirect = "redirect"
)

// verdicts is what an answer's status means for its event, where it is neither a success (2xx) nor
// a redirect (3xx, slow) nor just retried by policy, as 408, 409, 421, 423, 425, 429, the other 5xx
// and everything unheard of are.
var verdicts = map[int]outbox.Verdict{
	// Usually a secret, a deploy or a configuration that is wrong for every event: mended by hand,
	// so the events must not die meanwhile.
	http.StatusUnauthorized:      outbox.VerdictSlow,
	http.StatusForbidden:         outbox.VerdictSlow,
	http.StatusNotFound:          outbox.VerdictSlow,
	http.StatusProxyAuthRequired: outbox.VerdictSlow,

	// The receiver has read this event and says that it will never take it.
	http.StatusBadRequest:                  outbox.VerdictPermanent,
	http.StatusMethodNotAllowed:            outbox.VerdictPermanent,
	http.StatusNotAcceptable:               outbox.VerdictPermanent,
	http.StatusGone:                        outbox.VerdictPermanent,
	http.StatusLengthRequired:              outbox.VerdictPermanent,
	http.StatusRequestEntityTooLarge:       outbox.VerdictPermanent,
	http.StatusRequestURITooLong:           outbox.VerdictPermanent,
	http.StatusUnsupportedMediaType:        outbox.VerdictPermanent,
	http.StatusUnprocessableEntity:         outbox.VerdictPermanent,
	http.StatusRequestHeaderFieldsTooLarge: outbox.VerdictPermanent,
	http.StatusUnavailableForLegalReasons:  outbox.VerdictPermanent,
	http.StatusNotImplemented:              outbox.VerdictPermanent,
	http.StatusHTTPVersionNotSupported:     outbox.VerdictPermanent,
}

// judge says what an answer means: nil when it takes the event over. It is a function of its
// arguments; now is when the answer came.
//
// The header webhook-delivery says more than some statuses: abort-message ends the event, disable
// asks for no more events, as 410 does: that pauses the destination until somebody resumes it, and
// what would be retried waits as long as after a wrong configuration. 429 and 503 pause it for as long
// as they say.
func judge(status int, h http.Header, now time.Time) *outbox.DeliveryError {
	if status/100 == 2 {
		return nil
	}
	e := &outbox.DeliveryError{Verdict: verdicts[status], Kind: kindHTTP, Code: status}
	if status/100 == 3 {
		e.Verdict, e.Kind = outbox.VerdictSlow, kindRedirect
	}
	wish := strings.TrimSpace(h.Get("Webhook-Delivery"))
	disable := strings.EqualFold(wish, "disable")
	switch {
	case strings.EqualFold(wish, "abort-message"):
		e.Verdict = outbox.VerdictPermanent
	case disable && e.Verdict == outbox.VerdictRetry:
		e.Verdict = outbox.VerdictSlow
	}
	if disable || status == http.StatusGone {
		e.Pause = outbox.Forever
	}
	e.Err = errors.New(strings.TrimSpace(fmt.Sprintf("answered %d %s", status, http.StatusText(status))))
	if e.Verdict == outbox.VerdictPermanent {
		return e
	}
	after, err := retryAfter(h, now)
	if err != nil {
		e.Err = fmt.Errorf("%w; %w", e.Err, err)
	}
	e.After = after
	if e.Pause == 0 && (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable) {
		e.Pause = after
	}
	return e
}

// requestIDs lists headers by which a receiver finds a request in its own logs; the first counts.
var requestIDs = []string{"X-Request-Id", "X-Correlation-Id", "Request-Id", "X-Amzn-Requestid", "X-Trace-Id", "Cf-Ray"}

const maxRequestID = 128

// receipt is what is kept of an answer that took the event: its status, and its request id unless
// that is too long or odd to be one.
func receipt(status int, h http.Header) outbox.Receipt {
	text := fmt.Sprint(status)
	for _, name := range requestIDs {
		if id := h[name]; len(id) > 0 && id[0] != "" {
			if len(id[0]) <= maxRequestID && isVisible(id[0]) {
				text += " " + id[0]
			}
			break
		}
	}
	return outbox.Receipt{Text: text, Code: status}
}
