package storm

import (
	"context"
)

// operate has operators at work until ctx ends. The function that it returns waits for them.
func (r *run) operate(ctx context.Context) (await func()) {
	return func() { <-ctx.Done() }
}
