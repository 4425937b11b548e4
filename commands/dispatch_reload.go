package commands

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// reload reads the configuration again at every SIGHUP. What cannot be used keeps the old one.
func (r *dispatchRun) reload(ctx context.Context, f *fleet) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.hangup:
			r.systemd.reloading(func() { r.reread(f) })
		}
	}
}

func (r *dispatchRun) reread(f *fleet) {
	switch {
	case r.o.once:
		r.log.Info("not read again: a run with --once ends as it began")
	case r.file != nil && len(r.file.destinations) > 0:
		r.rereadFile(f)
	case r.o.secretFile == "":
		r.log.Info("nothing to read again: there is no --secret-file")
	default:
		r.rereadSecrets()
	}
}

func (r *dispatchRun) rereadSecrets() {
	secrets, err := readSecrets(r.o.secretFile)
	if err == nil {
		err = r.served[0].setSecrets(secrets)
	}
	if err != nil {
		r.log.Error("secrets not read again, the old ones stay", "error", "--secret-file: "+err.Error())
		return
	}
	r.log.Info("secrets read again", "active", len(secrets))
	r.warn(r.served[0])
}

// setSecrets has the deliveries to come signed with these.
func (s *served) setSecrets(secrets []string) error {
	sink, ok := s.target.(interface{ SetSecrets([]string) error })
	if !ok {
		return errors.New("the destination takes no secrets")
	}
	return sink.SetSecrets(secrets)
}

// rereadFile brings the loops in line with the file: those of destinations that changed begin anew.
func (r *dispatchRun) rereadFile(f *fleet) {
	c := comparison{run: r}
	file, err := readConfig(r.global.config, r.Process, true)
	if err == nil {
		err = c.compare(file, f.serves())
	}
	if err != nil {
		r.log.Error("configuration not read again, the old one stays", "error", inOneLine(err))
		return
	}
	if keys := changedSettings(r.file, file); len(keys) > 0 {
		r.log.Warn("these settings count from the next start on: " + strings.Join(keys, ", "))
	}
	r.mu.Lock()
	r.file = file
	r.mu.Unlock()
	offer(f.wake.of("")) // the router, which has new routes
	for _, s := range c.begin {
		r.warn(s)
	}
	for _, renew := range c.renew {
		renew()
	}
	f.begin(c.begin)
	for _, l := range c.drop {
		f.drop(l)
	}
	r.log.Info("configuration read again", append([]any{"destinations", c.n}, c.words...)...)
}

// comparison is what a new file changes.
type comparison struct {
	run   *dispatchRun
	n     int       // destinations to serve
	begin []*served // new ones and changed ones
	renew []func()  // gives destinations that go on their secrets
	drop  []*serving
	words []any // for the log
}

func (c *comparison) compare(file *configFile, serves []*serving) error {
	wanted, err := file.chosen(c.run.o.names)
	if err != nil {
		return err
	}
	c.n = len(wanted)
	for _, d := range wanted {
		if err := c.look(d, serves); err != nil {
			return err
		}
	}
	for _, l := range serves {
		if !slices.ContainsFunc(wanted, func(d *destination) bool { return d.name == l.name }) {
			c.drop = append(c.drop, l)
			c.words = append(c.words, "ended", l.shown())
		}
	}
	return nil
}

// look compares one destination with the loop that serves it.
func (c *comparison) look(d *destination, serves []*serving) error {
	i := slices.IndexFunc(serves, func(l *serving) bool { return l.name == d.name })
	what := "begun"
	if i >= 0 {
		l := serves[i]
		if l.fingerprint() == d.fingerprint() {
			if !slices.Equal(l.secrets, d.secrets) {
				c.words = append(c.words, "secrets", d.shown())
				c.renew = append(c.renew, func() {
					_ = l.setSecrets(d.secrets) // that they can be used was tried when the file was read
					l.secrets = d.secrets
				})
			}
			return nil
		}
		what = "changed"
	}
	s, err := c.run.serve(d)
	if err != nil {
		return err
	}
	c.words = append(c.words, what, d.shown())
	c.begin = append(c.begin, s)
	return nil
}

// fingerprint is all that a loop is made with, secrets left out, which it can change.
func (d *destination) fingerprint() string {
	all := *d
	all.secrets = nil
	text := fmt.Sprintf("%+v", all)
	for _, file := range []string{d.caFile, d.clientCert, d.clientKey} {
		if file != "" {
			content, err := os.ReadFile(file)
			text += fmt.Sprint(len(content), string(content), err)
		}
	}
	return text
}

// changedSettings lists what a running process does not change.
func changedSettings(before, after *configFile) (keys []string) {
	all := maps.Clone(after.settings)
	maps.Copy(all, before.settings)
	for key := range all {
		x, y := before.settings[key], after.settings[key]
		if x == nil || y == nil || !slices.Equal(x.texts, y.texts) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}
