package commands

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// durationValue is a flag's duration: 90s, 5m, 1h30m, and d = 24 h, w = 7 d on their own (30d, 2w).
type durationValue time.Duration

func (v *durationValue) String() string { return printDuration(time.Duration(*v)) }
func (v *durationValue) Type() string   { return "duration" }

func (v *durationValue) Set(s string) error {
	d, err := parseDuration(s)
	*v = durationValue(d)
	return err
}

func parseDuration(s string) (time.Duration, error) {
	unit := time.Duration(0)
	switch {
	case strings.HasSuffix(s, "d"):
		unit = 24 * time.Hour
	case strings.HasSuffix(s, "w"):
		unit = 7 * 24 * time.Hour
	}
	if unit > 0 {
		n, err := strconv.ParseFloat(s[:len(s)-1], 64)
		if err != nil || n < 0 || n > math.MaxInt64/float64(unit) || math.IsNaN(n) {
			return 0, fmt.Errorf("%q is not a duration such as 30d or 2w", s)
		}
		return time.Duration(n * float64(unit)), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration such as 500ms, 30s, 5m, 2h or 30d", s)
	}
	return d, nil
}

// printDuration is the shortest form: 30s instead of 0h0m30s.
func printDuration(d time.Duration) string {
	if d == 0 {
		return "0"
	}
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// backoffValue is a range of two durations, base..cap: 2s..5m.
type backoffValue struct{ base, cap time.Duration }

func (v *backoffValue) String() string {
	return printDuration(v.base) + ".." + printDuration(v.cap)
}
func (v *backoffValue) Type() string { return "base..cap" }

func (v *backoffValue) Set(s string) error {
	base, longest, found := strings.Cut(s, "..")
	if !found {
		return fmt.Errorf("%q is not a range such as 2s..5m", s)
	}
	var err, err2 error
	v.base, err = parseDuration(base)
	v.cap, err2 = parseDuration(longest)
	return errors.Join(err, err2)
}
