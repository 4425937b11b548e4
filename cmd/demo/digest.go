package main

import (
	"fmt"
	"regexp"
	"strings"
)

// digest makes a log short: it shows the first line of each kind and counts the others.
type digest struct {
	show  func(line string)
	kinds []string // in the order of their first line
	count map[string]int
}

// message finds what a line says: it stands between the level and the first attribute.
var message = regexp.MustCompile(` (?:DBG|INF|WRN|ERR) (.*?)(?: \w+=|$)`)

// add takes a line. One without a message, such as the last words before an exit, is shown.
func (d *digest) add(line string) {
	found := message.FindStringSubmatch(plain(line))
	if found == nil {
		d.show(line)
		return
	}
	kind := found[1]
	if d.count == nil {
		d.count = map[string]int{}
	}
	if d.count[kind]++; d.count[kind] == 1 {
		d.kinds = append(d.kinds, kind)
		d.show(line)
	}
}

// end says how many lines were not shown.
func (d *digest) end() {
	var more []string
	for _, kind := range d.kinds {
		if n := d.count[kind] - 1; n > 0 {
			more = append(more, fmt.Sprintf("%d %s", n, kind))
		}
	}
	if len(more) > 0 {
		d.show("… and more lines like these: " + strings.Join(more, ", "))
	}
}
