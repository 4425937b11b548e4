package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The headers of a signed request, as they stand in an [http.Header].
const (
	headerSignature = "X-Signature"       // sha256=<hex>, of the body alone
	headerID        = "Webhook-Id"        // Standard Webhooks: who it is
	headerTimestamp = "Webhook-Timestamp" // when it was sent, in Unix seconds
	headerList      = "Webhook-Signature" // v1,<base64> of id.timestamp.body, separated by blanks
)

const (
	bodyScheme   = "sha256="
	listScheme   = "v1,"
	secretPrefix = "whsec_" // of a secret whose rest is the key in base64
	shortSecret  = 24       // bytes; what Standard Webhooks asks for at least
)

// signer signs with one or more secrets. It is not changed once made; a rotation makes a new one.
type signer []*secret

// secret is one secret as the two schemes use it. The key of X-Signature is the secret's own bytes,
// the key of webhook-signature what a whsec_ secret decodes to.
type secret struct {
	body, list mac
	size       int // bytes of the key for webhook-signature
}

func newSigner(secrets []string) (signer, error) {
	var s signer
	for i, raw := range secrets {
		if raw == "" {
			continue
		}
		one, err := newSecret(raw)
		if err != nil {
			return nil, fmt.Errorf("secret %d: %w", i+1, err)
		}
		s = append(s, one)
	}
	return s, nil
}

func newSecret(raw string) (*secret, error) {
	key := []byte(raw)
	if encoded, ok := strings.CutPrefix(raw, secretPrefix); ok {
		decoded, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || len(decoded) == 0 {
			return nil, errors.New("what follows whsec_ is not base64")
		}
		key = decoded
	}
	return &secret{body: mac{key: []byte(raw)}, list: mac{key: key}, size: len(key)}, nil
}

// sign sets the headers that say who a body is, when it is sent and, with a secret, by whom.
func (s signer) sign(h http.Header, id string, at time.Time, body []byte) {
	timestamp := strconv.FormatInt(at.Unix(), 10)
	h[headerID], h[headerTimestamp] = []string{id}, []string{timestamp}
	if len(s) == 0 {
		return
	}
	h[headerSignature] = []string{s[0].signBody(body)}
	h[headerList] = []string{s[0].signList(id, timestamp, body)}
	for _, more := range s[1:] {
		h[headerList][0] += " " + more.signList(id, timestamp, body)
	}
}

func (s *secret) signBody(body []byte) string {
	var sum [sha256.Size]byte
	var text [len(bodyScheme) + 2*sha256.Size]byte
	return string(hex.AppendEncode(append(text[:0], bodyScheme...), s.body.sum(sum[:0], "", body)))
}

func (s *secret) signList(id, timestamp string, body []byte) string {
	var sum [sha256.Size]byte
	var text [len(listScheme) + 44]byte
	out := append(text[:0], listScheme...)
	return string(base64.StdEncoding.AppendEncode(out, s.list.sum(sum[:0], id+"."+timestamp+".", body)))
}

// Sign sets the signature headers that a [Sink] would send with body at that moment: what a
// receiver's own tests need.
func Sign(h http.Header, id string, at time.Time, body []byte, secrets ...string) error {
	s, err := newSigner(secrets)
	if err == nil && len(s) == 0 {
		err = ErrNoSecret
	}
	if err == nil {
		s.sign(h, id, at, body)
	}
	return err
}

// mac is HMAC-SHA256 under one key. Keyed states are kept: keying one costs as much as hashing
// a small body does.
type mac struct {
	key  []byte
	pool sync.Pool
}

func (m *mac) sum(dst []byte, head string, body []byte) []byte {
	h, ok := m.pool.Get().(hash.Hash)
	if !ok {
		h = hmac.New(sha256.New, m.key)
	}
	h.Reset()
	h.Write([]byte(head))
	h.Write(body)
	dst = h.Sum(dst)
	m.pool.Put(h)
	return dst
}
