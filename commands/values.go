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

// maxDuration is a hundred years, 36500d: what is added to a duration or jitters it cannot make it
// negative then.
const maxDuration = 36500 * 24 * time.Hour

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
		if err != nil || n < 0 || math.IsNaN(n) {
			return 0, fmt.Errorf("%q is not a duration such as 30d or 2w", s)
		}
		if n*float64(unit) > float64(maxDuration) {
			return 0, tooLong(s)
		}
		return time.Duration(n * float64(unit)), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a duration such as 500ms, 30s, 5m, 2h or 30d", s)
	}
	if d > maxDuration {
		return 0, tooLong(s)
	}
	return d, nil
}

func tooLong(s string) error { return fmt.Errorf("%q is longer than 36500d", s) }

// printDuration is the shortest form: 30s instead of 0h0m30s, 90d instead of 2160h.
func printDuration(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d == 0:
		return "0"
	case d >= 2*day && d%day == 0:
		return fmt.Sprintf("%dd", d/day)
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

// sizeValue is a flag's size in bytes: 1MiB, 64KiB, 500kB, 20000. 0 is no limit.
type sizeValue int

func (v *sizeValue) String() string { return printSize(int(*v)) }
func (v *sizeValue) Type() string   { return "size" }

func (v *sizeValue) Set(s string) error {
	n, err := parseSize(s)
	*v = sizeValue(n)
	return err
}

// sizeUnits lists the units, the longer name before the one that it ends in.
var sizeUnits = []struct {
	name  string
	bytes float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}, {"", 1},
}

// parseSize takes a number and a unit; the letters' case does not count.
func parseSize(s string) (int, error) {
	for _, unit := range sizeUnits {
		if len(s) < len(unit.name) || !strings.EqualFold(s[len(s)-len(unit.name):], unit.name) {
			continue
		}
		number := strings.TrimSpace(s[:len(s)-len(unit.name)])
		if number == "" || strings.Trim(number, "0123456789.") != "" {
			break
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil || n*unit.bytes > 1<<40 {
			break
		}
		return int(n * unit.bytes), nil
	}
	return 0, fmt.Errorf("%q is not a size such as 64KiB, 1MiB or 20000", s)
}

// printSize is the largest of KiB, MiB and GiB that divides n, or bytes.
func printSize(n int) string {
	for _, unit := range []struct {
		name  string
		bytes int
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n > 0 && n%unit.bytes == 0 {
			return fmt.Sprint(n/unit.bytes, unit.name)
		}
	}
	return fmt.Sprint(n)
}

// rateValue is a flag's rate: 50/s, 600/m or 1000/h, kept as events per second. 0 is no limit.
type rateValue float64

func (v *rateValue) Type() string { return "rate" }

func (v *rateValue) String() string {
	if *v == 0 {
		return ""
	}
	return strconv.FormatFloat(float64(*v), 'f', -1, 64) + "/s"
}

func (v *rateValue) Set(s string) error {
	number, unit, _ := strings.Cut(s, "/")
	n, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	per := map[string]float64{"s": 1, "m": 60, "h": 3600}[strings.TrimSpace(unit)]
	if err != nil || per == 0 || !(n > 0) || n > 1e9 {
		return fmt.Errorf("%q is not a rate such as 50/s, 600/m or 1000/h", s)
	}
	*v = rateValue(n / per)
	return nil
}

// percentValue is a flag's share: 95%, or 0.95. It is kept as 0..1.
type percentValue float64

func (v *percentValue) Type() string { return "percent" }

func (v *percentValue) String() string {
	return strconv.FormatFloat(math.Round(float64(*v)*1e6)/1e4, 'f', -1, 64) + "%"
}

func (v *percentValue) Set(s string) error {
	number, isPercent := strings.CutSuffix(strings.TrimSpace(s), "%")
	share, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if isPercent {
		share /= 100
	}
	if err != nil || !(share >= 0 && share <= 1) {
		return fmt.Errorf("%q is not a share such as 95%% or 0.95", s)
	}
	*v = percentValue(share)
	return nil
}
