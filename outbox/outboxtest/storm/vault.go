package storm

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/outboxctl/outboxctl/outbox/outboxtest/storm/history"
)

// vault knows the secrets of all destinations, those that were and those that are. Each is a canary: none of it
// may show up anywhere.
type vault struct {
	dir string

	mu      sync.Mutex
	secrets map[string][]secret // by destination, oldest first
}

// letGo is how long after it was told a dispatcher may sign with an old secret: one that is suspended hears it late.
const letGo = 4*lease + 5*time.Second

type secret struct {
	name, text string
	list       *standardwebhooks.Webhook // by the library that receivers use
	life       history.Secret
}

func newVault(dir string, names []string) (*vault, error) {
	v := &vault{dir: dir, secrets: map[string][]secret{}}
	for _, name := range names {
		if err := v.renew(name, 1); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// file is where a destination's secrets are, one a line.
func (v *vault) file(dest string) string { return filepath.Join(v.dir, dest+".secrets") }

// renew makes a new secret, if the newest is not already number n, and writes the file: the new one signs first, the one
// before beside it.
func (v *vault) renew(dest string, n int) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := v.secrets[dest]
	if len(all) < n {
		s := secret{name: fmt.Sprintf("%s/%d", dest, n), text: fmt.Sprintf("CANARY-secret-%d-of-%s-0123456789", n, dest)}
		var err error
		if n%2 == 0 { // both forms that there are
			encoded := base64.StdEncoding.EncodeToString([]byte(s.text))
			s.text = "whsec_" + encoded
			s.list, err = standardwebhooks.NewWebhook(s.text)
		} else {
			s.list, err = standardwebhooks.NewWebhookRaw([]byte(s.text))
		}
		if err != nil {
			return err
		}
		s.life = history.Secret{Name: s.name, Began: time.Now()}
		all = append(all, s)
		v.secrets[dest] = all
	}
	return v.write(dest, all[max(0, len(all)-2):])
}

// retire leaves the newest one alone in the file.
func (v *vault) retire(dest string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := v.secrets[dest]
	for i := range all[:len(all)-1] {
		if life := &all[i].life; life.Gone.IsZero() {
			life.Gone = time.Now().Add(letGo)
		}
	}
	return v.write(dest, all[len(all)-1:])
}

// lives says when each secret was in use.
func (v *vault) lives() []history.Secret {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []history.Secret
	for _, dest := range slices.Sorted(maps.Keys(v.secrets)) {
		for _, s := range v.secrets[dest] {
			all = append(all, s.life)
		}
	}
	return all
}

// write puts secrets into a file in one step, newest first.
func (v *vault) write(dest string, some []secret) error {
	var b strings.Builder
	for i := len(some) - 1; i >= 0; i-- {
		b.WriteString(some[i].text + "\n")
	}
	file := v.file(dest)
	if err := os.WriteFile(file+".new", []byte(b.String()), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// known returns what a destination's requests may be signed with.
func (v *vault) known(dest string) []secret {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.secrets[dest])
}

// verify names the secrets that a request is signed with, in both schemes.
func (v *vault) verify(dest string, h http.Header, body []byte) (list []string, whole string) {
	for _, s := range v.known(dest) {
		if s.list.Verify(body, h) == nil {
			list = append(list, s.name)
		}
		mac := hmac.New(sha256.New, []byte(s.text))
		mac.Write(body)
		if hmac.Equal([]byte(h.Get("X-Signature")), []byte("sha256="+hex.EncodeToString(mac.Sum(nil)))) {
			whole = s.name
		}
	}
	return list, whole
}

// canaries are all secrets by name.
func (v *vault) canaries() map[string]string {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := map[string]string{}
	for _, secrets := range v.secrets {
		for _, s := range secrets {
			all["secret "+s.name] = s.text
		}
	}
	return all
}
