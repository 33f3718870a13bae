package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/xroce/xroce/roce/link/xdp"
	"github.com/xroce/xroce/verbs"
)

// Exit statuses beside 0; after signal n it is 128 + n, as shells have it.
const (
	statusFailed      = 1
	statusEnvironment = 2
)

// errUsage: the command line, or what it names, cannot work.
var errUsage = errors.New("wrong use")

// errReported: a process of the demo has told its parent why it ends.
var errReported = errors.New("reported to the parent process")

// usage makes an error that is due to the command line.
func usage(format string, values ...any) error {
	return &environmentError{fmt.Errorf(format, values...)}
}

// environmentError is an error whose text is all that the user needs.
type environmentError struct{ error }

func (e *environmentError) Unwrap() []error { return []error{e.error, errUsage} }

// interruption is the cause of a run that a signal ended.
type interruption struct{ signal syscall.Signal }

func (i interruption) Error() string { return fmt.Sprintf("stopped by signal: %v", i.signal) }

// exitStatus returns the exit status for an error.
func exitStatus(err error) int {
	var stopped interruption
	switch {
	case err == nil:
		return 0
	case errors.As(err, &stopped):
		return 128 + int(stopped.signal)
	case isEnvironment(err):
		return statusEnvironment
	}
	return statusFailed
}

// isEnvironment says that an error is due to the command line or to the machine.
func isEnvironment(err error) bool {
	if xdp.IsEnvironment(err) {
		return true
	}
	for _, known := range []error{
		errUsage, verbs.ErrPathMTU, verbs.ErrNoGID, verbs.ErrNotSupported, verbs.ErrLimit,
		fs.ErrPermission, errors.ErrUnsupported,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}

// oneLine returns the text of an error, those of joined ones one after the other.
func oneLine(err error) string {
	return strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
}
