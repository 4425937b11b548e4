package outboxtest_test

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"testing"

	"github.com/outboxctl/outboxctl/outbox/outboxtest"
)

func TestSecretIsFoundInEveryForm(t *testing.T) {
	t.Parallel()
	const secret = outboxtest.Secret(`S3cr3t%S#@!<"`)
	for text, want := range map[string]string{
		"":                                      "",
		"S3cr3t%S":                              "",
		"x " + string(secret) + " y":            "plain",
		fmt.Sprintf("%q", "x"+secret+"y"):       "quoted",
		`S3cr3t%S#@!\u003c\"`:                   "quoted",
		"?a=" + url.QueryEscape(string(secret)): "URL",
		"//" + url.UserPassword("me", string(secret)).String() + "@":               "URL",
		fmt.Sprintf("%x", "x"+secret):                                              "hex",
		fmt.Sprintf("%X", "x"+secret):                                              "hex",
		base64.StdEncoding.EncodeToString([]byte(secret)):                          "base64",
		base64.StdEncoding.EncodeToString([]byte("u:" + string(secret))):           "base64",
		base64.URLEncoding.EncodeToString([]byte("me:" + string(secret) + "y")):    "base64",
		base64.StdEncoding.EncodeToString([]byte("user:" + string(secret) + "yz")): "base64",
	} {
		if got := secret.In(text); got != want {
			t.Errorf("In(%q) = %q, want %q", text, got, want)
		}
	}
}
