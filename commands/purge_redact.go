package commands

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/outbox"
)

const modeRedact = "redact"

// rules are those of --path, or else those of the configuration file.
func (o *purgeOptions) rules(a *app) (outbox.Redaction, error) {
	if len(o.paths) == 0 && a.file != nil {
		o.paths = a.file.redacted.texts
	}
	if len(o.paths) == 0 {
		return outbox.Redaction{}, usage(errors.New("--redact has nothing to blank: give --path, or redact in the configuration file"),
			"such as --path '$.email', or --path '$' for all of the payload")
	}
	rules, err := outbox.NewRedaction(o.paths...)
	if err != nil {
		return rules, usage(fmt.Errorf("--path: %w", err), "")
	}
	return rules, nil
}

// redactBatch is smaller than a purge's: each payload is read and written again.
const redactBatch = 500

func (o *purgeOptions) runRedact(ctx context.Context, a *app, store *outbox.Store, filter outbox.Filter, rules outbox.Redaction, fs *pflag.FlagSet) error {
	if err := needFilter(filter, o.all); err != nil {
		return err
	}
	what := outbox.Redact{Filter: filter, Rules: rules}
	paths := strings.Join(o.paths, ", ")
	var run *outbox.Run
	err := a.operate(ctx, store, operation{
		operateOptions: o.operateOptions,
		verb:           "purge", act: "redact", done: "redacted", noun: "event", what: filterWords(filter) + "; " + cell(paths),
		spec: outbox.Operation{Filter: purgeRecord{Filter: filter, Mode: modeRedact, Paths: o.paths}, Alone: true},
		step: func(r *outbox.Run) outbox.Step {
			run = r
			return store.Redact(r, what)
		},
		pace:         o.pace(fs, min(o.batchSize, redactBatch)),
		skipsAreFine: []string{outbox.SkipLocked, outbox.SkipUnchanged},
		more:         redactedWords,
		document: func(base operationDocument, p outbox.Progress) any {
			return o.newDocument(base, p)
		},
	})
	if run != nil && !run.Rehearsal() && run.Progress.Done > 0 {
		fmt.Fprintln(a.Err, "what they said is still in dead rows until a vacuum, and in backups and archived WAL until these expire")
	}
	return err
}

func redactedWords(p outbox.Progress) string {
	if n := purged(p).History["archive"]; n > 0 {
		return fmt.Sprintf(", %s of them in the archive", thousands(n))
	}
	return ""
}
