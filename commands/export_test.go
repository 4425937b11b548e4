package commands

import (
	"sync"

	"github.com/spf13/cobra"
)

// Tree is the whole command line, for tests of every command and every flag.
func Tree() *cobra.Command { return newRoot(&app{}) }

// ShellWord is shellWord.
var ShellWord = shellWord

// DialOnce is dialOnce, which no server can tell from a client that is patient.
var DialOnce = dialOnce

// RateValue and PercentValue are flags' values, for tests of what they take.
type (
	RateValue    = rateValue
	PercentValue = percentValue
)

var Expand = expand

// knownFlags are made once: they take most of the time of a short file.
var knownFlags = sync.OnceValue(func() flagsByKey { return fileFlags(Process{}) })

// ConfigMistakes is what a person reads about a configuration file.
func ConfigMistakes(text []byte, getenv func(string) string) string {
	_, r := parseConfig("test.yaml", text, Process{Getenv: getenv}, knownFlags(), true)
	if len(r.mistakes) == 0 {
		return ""
	}
	f := r.failure().(*failure)
	return f.Error() + "\n" + f.hint
}

// ParseTable is parseTable.
var ParseTable = parseTable
