package commands_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"

	"github.com/outboxctl/outboxctl/commands"
)

func TestAddressThatDoesNotAnswerIsDialledOnce(t *testing.T) {
	t.Parallel()
	var dialled []string
	away := errors.New("connection refused")
	dial := commands.DialOnce(func(_ context.Context, _, address string) (net.Conn, error) {
		dialled = append(dialled, address)
		if address == "there:1" {
			return nil, nil
		}
		return nil, away
	})
	for _, address := range []string{"away:1", "away:1", "there:1", "there:1", "away:2"} {
		_, err := dial(t.Context(), "tcp", address)
		if want := address != "there:1"; errors.Is(err, away) != want {
			t.Errorf("dial %s = %v", address, err)
		}
	}
	if want := []string{"away:1", "there:1", "there:1", "away:2"}; !slices.Equal(dialled, want) {
		t.Errorf("dialled %v, want %v", dialled, want)
	}
}
