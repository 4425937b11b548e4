package commands

import "github.com/outboxctl/outboxctl/outbox"

// redaction is what the configuration hides of payloads.
func (a *app) redaction() outbox.Redaction {
	if a.file == nil {
		return outbox.Redaction{}
	}
	return a.file.redact
}
