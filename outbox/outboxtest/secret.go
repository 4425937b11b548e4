package outboxtest

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
)

// Secret is a text that tests put where secrets are, to look for it where none may be.
type Secret string

// In says how a text tells the secret: in a word, of the encodings in which programs pass secrets on. It
// is "" for one that does not.
func (s Secret) In(text string) string {
	for how, forms := range s.forms() {
		for _, form := range forms {
			if strings.Contains(text, form) {
				return how
			}
		}
	}
	return ""
}

func (s Secret) forms() map[string][]string {
	quoted, escaped := strconv.Quote(string(s)), s.json()
	return map[string][]string{
		"plain":  {string(s)},
		"quoted": {quoted[1 : len(quoted)-1], escaped[1 : len(escaped)-1]},
		"URL":    {url.QueryEscape(string(s)), url.PathEscape(string(s)), url.UserPassword("", string(s)).String()[1:]},
		"hex":    {hex.EncodeToString([]byte(s)), strings.ToUpper(hex.EncodeToString([]byte(s)))},
		"base64": s.base64(),
	}
}

func (s Secret) json() string {
	text, err := json.Marshal(string(s))
	if err != nil {
		panic(err) // of a string there is none
	}
	return string(text)
}

// base64 is how the secret looks inside of something longer, which depends on where it begins there: the
// characters that it shares with its neighbours are left out.
func (s Secret) base64() (forms []string) {
	for before := range 3 {
		text := append(make([]byte, before), s...)
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			forms = append(forms, encoding.EncodeToString(text)[(before*8+5)/6:len(text)*8/6])
		}
	}
	return forms
}
