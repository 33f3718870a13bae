package xsk

import (
	"errors"
	"fmt"
)

// Sentinels for errors.Is. What Open, FromFDs and Kick return is an *Error that
// wraps one of them, the error number of the kernel, or both.
var (
	// ErrInvalidOptions: Options contradict each other or leave the range that
	// AF_XDP allows. No system call was made.
	ErrInvalidOptions = errors.New("invalid options")
	// ErrQueueBusy: another AF_XDP socket is bound to this queue.
	ErrQueueBusy = errors.New("queue is taken")
	// ErrPermission: a capability is missing, which the text names, or the capabilities do not
	// suffice here.
	ErrPermission = errors.New("missing capability")
	// ErrMemoryLocked: the UMEM exceeds RLIMIT_MEMLOCK; the text names the value.
	ErrMemoryLocked = errors.New("locked memory limit reached")
	// ErrNotSupported: this kernel, driver or operating system cannot do it.
	ErrNotSupported = fmt.Errorf("not supported by AF_XDP here: %w", errors.ErrUnsupported)
	// ErrDown: the interface is administratively down. The socket works again
	// when the interface comes back up.
	ErrDown = errors.New("interface is down")
	// ErrClosed: the socket was closed, or its interface was deleted or moved to
	// another network namespace. Either is final.
	ErrClosed = errors.New("socket is closed")
)

// Error tells which step failed, with which values, and what to do about it.
type Error struct {
	Step      string // what was tried: "bind", "register UMEM", ...
	Interface int    // interface index
	Queue     int
	Detail    string // the values that clash and the way out
	Kind      error  // one of the sentinels, or nil
	Err       error  // error number from the kernel, or nil
}

// Error returns "xsk: <step>: <detail>: <cause>".
func (e *Error) Error() string {
	text := "xsk: " + e.Step
	if e.Detail != "" {
		text += ": " + e.Detail
	} else {
		text += fmt.Sprintf(": queue %d of ifindex %d", e.Queue, e.Interface)
	}
	switch {
	case e.Err != nil:
		text += ": " + e.Err.Error()
	case e.Kind != nil:
		text += ": " + e.Kind.Error()
	}
	return text
}

// Unwrap gives the sentinel and the error number to errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	var wrapped []error
	if e.Kind != nil {
		wrapped = append(wrapped, e.Kind)
	}
	if e.Err != nil {
		wrapped = append(wrapped, e.Err)
	}
	return wrapped
}
