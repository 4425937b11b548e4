package check

import (
	"slices"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// A process is judged when it was looked at so often over so long. Before that a heap has not found its size.
const (
	minSamples = 30
	minAge     = 90 * time.Second
)

// long reports whether some process of the run lived long enough to be judged.
func long(s *story) bool {
	for _, all := range s.samples() {
		if lasting(all) {
			return true
		}
	}
	return false
}

func lasting(all []history.Sample) bool {
	return len(all) >= minSamples && all[len(all)-1].At.Sub(all[0].At) >= minAge
}

// samples are those of each life of a dispatcher.
func (s *story) samples() map[*history.Process][]history.Sample {
	all := map[*history.Process][]history.Sample{}
	for _, sample := range s.Samples {
		if p := s.process(sample.Name, sample.At); p != nil && p.Role == "dispatcher" {
			all[p] = append(all[p], sample)
		}
	}
	return all
}

// judgeFlatness compares the middle of a process's first third with that of its last one, and allows for what a
// warm cache or an outage costs.
func judgeFlatness(s *story, v *verdict) {
	for p, all := range s.samples() {
		slices.SortFunc(all, func(a, b history.Sample) int { return a.At.Compare(b.At) })
		if !lasting(all) {
			continue
		}
		v.saw(len(all))
		s.judgeGrowth(p, all, "memory (MiB)", 64, func(x history.Sample) int64 { return x.RSS >> 20 }, v)
		s.judgeGrowth(p, all, "files", 64, func(x history.Sample) int64 { return int64(x.Files) }, v)
		s.judgeGrowth(p, all, "goroutines", 128, func(x history.Sample) int64 { return int64(x.Goroutines) }, v)
	}
}

func (s *story) judgeGrowth(p *history.Process, all []history.Sample, what string, more int64, of func(history.Sample) int64, v *verdict) {
	third := len(all) / 3
	first, last := median(all[:third], of), median(all[len(all)-third:], of)
	if last > first+first/2+more {
		v.wrong("%s (pid %d) grew from %d to %d %s within %s", p.Name, p.Pid, first, last, what, all[len(all)-1].At.Sub(all[0].At).Round(time.Second))
	}
}

func median(all []history.Sample, of func(history.Sample) int64) int64 {
	values := make([]int64, len(all))
	for i, x := range all {
		values[i] = of(x)
	}
	slices.Sort(values)
	return values[len(values)/2]
}
