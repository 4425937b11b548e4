package commands

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"github.com/spf13/pflag"

	"github.com/outboxctl/outboxctl/migrate"
)

// upOptions are the flags of migrate up.
type upOptions struct {
	lockOptions
	with    []string
	without []string
}

func (o *upOptions) flags(fs *pflag.FlagSet) {
	o.lockOptions.flags(fs)
	withFlag(fs, &o.with)
	fs.StringSliceVar(&o.without, "without", nil, "take these `options` away")
}

func withFlag(fs *pflag.FlagSet, with *[]string) {
	fs.StringSliceVar(with, "with", nil, "add these `options`: "+strings.Join(optionNames(), ", "))
}

func optionNames() (names []string) {
	for _, o := range migrate.Options() {
		names = append(names, o.Name)
	}
	return names
}

// optionsHelp lists the options for the help, a line each.
func optionsHelp() string {
	var text strings.Builder
	for _, o := range migrate.Options() {
		fmt.Fprintf(&text, "  %-20s %s\n", o.Name, o.About)
	}
	return strings.TrimSuffix(text.String(), "\n")
}

// all is what up is to do: the migrations, then the options.
func (o *upOptions) all(ctx context.Context, s *migrate.Schema) iter.Seq2[migrate.News, error] {
	return func(yield func(migrate.News, error) bool) {
		for _, part := range []iter.Seq2[migrate.News, error]{s.Up(ctx), s.Without(ctx, o.without...), s.With(ctx, o.with...)} {
			for n, err := range part {
				if !yield(n, err) || err != nil {
					return
				}
			}
		}
	}
}
