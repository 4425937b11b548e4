package commands

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"unicode/utf8"

	"github.com/outboxctl/outboxctl/outbox"
)

// editText lets a person edit an event's payload. A text that is no JSON is not lost: the editor
// opens with it again.
func (a *app) editText(ctx context.Context, e *outbox.Editable) ([]byte, error) {
	name, text := fmt.Sprintf("event-%d.json", e.Row.ID), e.Content.Payload
	if e.Content.Binary {
		name = fmt.Sprintf("event-%d.txt", e.Row.ID)
		if !utf8.Valid(text) {
			return nil, usage(fmt.Errorf("the payload of event %d is bytes that are no text", e.Row.ID), "")
		}
	} else if text = indented(text); text == nil {
		return nil, fmt.Errorf("the payload of event %d is not JSON", e.Row.ID)
	}
	for {
		changed, err := a.edited(ctx, name, text)
		if err != nil || e.Content.Binary {
			return changed, err
		}
		why := jsonTrouble(changed)
		if why == nil {
			return changed, nil
		}
		if !terminal(a.In) || a.global.yes {
			return nil, usage(fmt.Errorf("not JSON any more: %w", why), "")
		}
		fmt.Fprintf(a.Err, "not JSON any more: %v\n", why)
		if err := a.confirm(ctx, "edit it again?"); err != nil {
			return nil, err
		}
		text = changed
	}
}

func indented(doc []byte) []byte {
	var text bytes.Buffer
	if json.Indent(&text, doc, "", "  ") != nil {
		return nil
	}
	text.WriteByte('\n')
	return text.Bytes()
}

// jsonTrouble says where a text stops being JSON, and nothing of what is there.
func jsonTrouble(text []byte) error {
	if !utf8.Valid(text) {
		return errors.New("it is not UTF-8")
	}
	var raw json.RawMessage
	err := json.Unmarshal(text, &raw)
	syntax, ok := errors.AsType[*json.SyntaxError](err)
	switch {
	case err == nil:
		return nil
	case !ok:
		return errors.New("it cannot be read")
	}
	before := text[:min(int(syntax.Offset), len(text))]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := len([]rune(string(before[bytes.LastIndexByte(before, '\n')+1:])))
	return fmt.Errorf("line %d, column %d", line, column)
}

// edited opens the editor with a text in a file that nobody else may read, in a folder of its own,
// where editors leave theirs: it goes with all that is in it.
func (a *app) edited(ctx context.Context, name string, text []byte) ([]byte, error) {
	editor, err := a.editor()
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "outboxctl-") // for this user alone
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return nil, err
	}
	if err := a.runEditor(editor, path); err != nil {
		return nil, &failure{exitError, fmt.Errorf("%s ended with %w: nothing was changed", editor, err), ""}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// editor is the user's choice, as a command for the shell.
func (a *app) editor() (string, error) {
	for _, name := range []string{"VISUAL", "EDITOR"} {
		if editor := a.Getenv(name); editor != "" {
			return editor, nil
		}
	}
	if path, err := exec.LookPath("vi"); err == nil {
		return path, nil
	}
	return "", usage(errors.New("there is no editor: set EDITOR"), "or say what to change by --set /pointer=value and --unset /pointer")
}

// runEditor waits for the editor. It is left alone by the first signal, which may be meant for it.
func (a *app) runEditor(editor, path string) error {
	cmd := exec.CommandContext(a.kill, "sh", "-c", editor+` "$1"`, "outboxctl", path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.In, a.screen(), a.Err
	return cmd.Run()
}

// screen is where an editor draws: not into a file that results go to.
func (a *app) screen() io.Writer {
	if terminal(a.Out) {
		return a.Out
	}
	return a.Err
}
