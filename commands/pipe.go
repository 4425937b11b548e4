package commands

import (
	"errors"
	"io"
	"io/fs"
	"syscall"
)

// SIGPIPE is ignored, so that a dispatcher outlives whoever reads its log. A standard output without a
// reader is an error of the write then: it ends a command, as the signal would.

// errNoReader stops a dispatcher whose events go to a standard output that nobody reads any more.
var errNoReader = errors.New("standard output has no reader any more")

// pipe is a standard output that says when it has lost its reader.
type pipe struct {
	io.Writer
	lost func()
}

func (p pipe) Write(text []byte) (int, error) {
	n, err := p.Writer.Write(text)
	if noReader(err) {
		p.lost()
	}
	return n, err
}

// noReader reports whether err is that of a write to a pipe that was closed at its other end; a
// connection that breaks has other words.
func noReader(err error) bool {
	write, ok := errors.AsType[*fs.PathError](err)
	return ok && errors.Is(write.Err, syscall.EPIPE)
}
