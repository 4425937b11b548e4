package commands

import "github.com/outboxctl/outboxctl/outbox"

// redaction is what the configuration hides of payloads.
func (a *app) redaction() outbox.Redaction { return outbox.Redaction{} }
