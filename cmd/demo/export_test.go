package main

// Claims returns which claims hold of so many placed orders, given the committed ones, how often
// each was taken, the one that was refused, and how many requests were duplicates and forged; all
// orders have copies, which the warehouse took so often.
func Claims(placed int, committed []int64, taken map[int64]int, refused int64, duplicates, forged int, copies map[int64]int) []bool {
	p := proof{placed: placed, committed: committed, deadLetters: 1, receiver: tally{
		requests: 10, failed: 2, duplicates: duplicates, forged: forged,
		taken: taken, refused: map[int64]bool{refused: true},
	}, warehouse: tally{taken: copies}, inVain: 1}
	var holds []bool
	for _, c := range p.claims() {
		holds = append(holds, c.holds)
	}
	return holds
}

// DigestLog returns what is shown of a log.
func DigestLog(log []string) []string {
	var shown []string
	d := &digest{show: func(line string) { shown = append(shown, line) }}
	for _, line := range log {
		d.add(line)
	}
	d.end()
	return shown
}
