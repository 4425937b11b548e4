// Mutants looks for programs that have one mistake each: outboxctl with a lease that is no fence, with a body that is
// marshalled anew. Storms and tests that find each of them can be believed when they find nothing in the program
// as it is, which they have to, too.
//
//	make mutants            # all of them: half an hour
//	make mutants ONLY=lease # those with the word in their names
//
// Exit codes: 0 every mutant was found and nothing else; 1 one was not, or a control run found something; 2 usage;
// 130 interrupted.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/mutant"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

func run(ctx context.Context, words []string) int {
	all := chosen(words)
	if len(all) == 0 {
		fmt.Fprintf(os.Stderr, "mutants: none has %q in its name\n", strings.Join(words, " "))
		return 2
	}
	began := time.Now()
	fmt.Printf("%-48s  %-46s  %7s\n", "mutant", "found by", "seconds")
	var wrong []string
	for _, m := range all {
		found, err := m.Hunt(ctx)
		if ctx.Err() != nil {
			return 130
		}
		tell(m.Name, "- SURVIVES", found, err)
		fmt.Printf("    breaks: %s\n", m.Breaks)
		if found.By == "" || err != nil {
			wrong = append(wrong, m.Name)
		}
	}
	controls := mutant.Controls(all)
	fmt.Printf("\n%-48s  %-46s  %7s\n", "the program as it is", "found by", "seconds")
	for _, c := range controls {
		found, err := c.Hunt(ctx)
		if ctx.Err() != nil {
			return 130
		}
		tell(c.Name, "-", found, err)
		if found.By != "" || err != nil {
			wrong = append(wrong, c.Name)
		}
	}
	fmt.Printf("\n%d mutants and %d control runs in %s", len(all), len(controls), time.Since(began).Round(time.Second))
	if len(wrong) > 0 {
		fmt.Printf("; NOT as it must be: %s\n", strings.Join(wrong, ", "))
		return 1
	}
	fmt.Printf(": every mutant was found, and nothing else\n")
	return 0
}

// chosen are the mutants with one of the words in their names; without words, all.
func chosen(words []string) []mutant.Mutant {
	return slices.DeleteFunc(mutant.All(), func(m mutant.Mutant) bool {
		return len(words) > 0 && !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(m.Name, w) })
	})
}

// tell prints what came of a hunt.
func tell(name, nothing string, found mutant.Found, err error) {
	by := found.By
	switch {
	case err != nil:
		by = "? see below"
	case by == "":
		by = nothing
	}
	fmt.Printf("%-48s  %-46s  %7.0f\n", name, by, found.Took.Seconds())
	if found.How != "" {
		fmt.Printf("    shown:  %s\n", found.How)
	}
	if err != nil {
		fmt.Printf("    %v\n", err)
	}
}
