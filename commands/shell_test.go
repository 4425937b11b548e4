package commands_test

import (
	"os/exec"
	"strings"
	"testing"
	"unicode"

	"github.com/outboxctl/outboxctl/commands"
)

// A command that is printed can be pasted whatever is in it: the shell reads the word that was meant,
// and the terminal that shows it does nothing but show it.
func TestPrintedWordsCanBePasted(t *testing.T) {
	t.Parallel()
	words := append(hostileTexts(), "", "plain-1.2", "two words", "$(touch x)", "`id`", "a!b", "~", "a=b", "\\033", "$'\\''")
	for _, word := range words {
		printed := commands.ShellWord(word)
		if strings.ContainsFunc(printed, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q is printed as %q", word, printed)
		}
		if strings.Contains(word, "\x00") { // no argument can hold one
			continue
		}
		read, err := exec.Command("bash", "-c", "printf %s "+printed).Output()
		if err != nil || string(read) != word {
			t.Errorf("%q is printed as %s, which is read as %q, %v", word, printed, read, err)
		}
	}
}
