package webhook

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const maxRetryAfter = 24 * time.Hour

// ErrRetryAfter is in the chain of a delivery's error when the answer carried a Retry-After that is
// neither digits nor an HTTP date, and was ignored.
var ErrRetryAfter = errors.New("unreadable retry-after ignored")

// retryAfter is how long the answer asks to wait, at most a day (RFC 9110, 10.2.3). The first header
// counts. A date is measured against the answer's own Date, so that the two clocks need not agree
// and a date in whole seconds does not lose the fraction; without one, against now.
func retryAfter(h http.Header, now time.Time) (time.Duration, error) {
	values := h["Retry-After"]
	if len(values) == 0 {
		return 0, nil
	}
	text := strings.Trim(values[0], " \t")
	if isDigits(text) {
		return seconds(text), nil
	}
	at, err := parseDate(text)
	if err != nil {
		return 0, ErrRetryAfter
	}
	if date, err := parseDate(h.Get("Date")); err == nil {
		now = date
	}
	return min(max(at.Sub(now), 0), maxRetryAfter), nil
}

func isDigits(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
}

// seconds reads digits of any number: what overflows is beyond a day anyway.
func seconds(digits string) time.Duration {
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > uint64(maxRetryAfter/time.Second) {
		return maxRetryAfter
	}
	return time.Duration(n) * time.Second
}

// parseDate reads the three forms of an HTTP date (RFC 9110, 5.6.7), all of them in GMT.
func parseDate(text string) (time.Time, error) {
	t, err := http.ParseTime(text)
	if err == nil && !strings.HasSuffix(text, " GMT") && strings.Contains(text, ",") {
		return time.Time{}, errors.New("not in GMT")
	}
	return t.UTC(), err
}
