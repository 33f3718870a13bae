package perf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/xroce/xroce/internal/jsonline"
	"github.com/xroce/xroce/verbs"
)

// ErrOtherEndGone: the TCP connection has ended before the test.
var ErrOtherEndGone = errors.New("the other end is gone")

// line is the TCP connection to the other end. Nothing is read or written any more when its context ends.
type line struct {
	ctx        context.Context
	connection net.Conn
}

// openLine returns a line, and what gives it up again. The connection stays the caller's.
func openLine(ctx context.Context, connection net.Conn) (*line, func() bool) {
	past := time.Unix(1, 0)
	return &line{ctx, connection}, context.AfterFunc(ctx, func() { _ = connection.SetDeadline(past) })
}

// within bounds the time of what is read and written next; 0 is no bound. The end of the context, which sets the
// deadline, too, is not overwritten.
func (l *line) within(d time.Duration) error {
	var at time.Time
	if d > 0 {
		at = time.Now().Add(d)
	}
	err := l.connection.SetDeadline(at)
	if l.ctx.Err() != nil {
		err = context.Cause(l.ctx)
	}
	return err
}

// explain tells why the line does not work any more.
func (l *line) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case l.ctx.Err() != nil:
		return context.Cause(l.ctx)
	}
	return fmt.Errorf("%w: %w", ErrOtherEndGone, err)
}

// told is a value, or why there is none.
type told[T any] struct {
	Failure string `json:"failure,omitempty"`
	Misuse  bool   `json:"misuse,omitempty"`
	Value   T      `json:"value"`
}

// mostFailure bounds the text of a failure in bytes, which has to fit a line.
const mostFailure = 2000

func tell[T any](value T, err error) told[T] {
	t := told[T]{Value: value}
	if err != nil {
		t.Misuse = errors.Is(err, ErrMisuse)
		t.Failure = err.Error()
		t.Failure = t.Failure[:min(len(t.Failure), mostFailure)]
	}
	return t
}

// err is the error of the other end, as it looks from here.
func (t *told[T]) err() error {
	switch {
	case t.Failure == "":
		return nil
	case t.Misuse:
		return misused("the other end: %s", t.Failure)
	}
	return fmt.Errorf("the other end: %s", t.Failure)
}

// exchange tells the other end a value or why there is none, and returns that one's. Both ends call it.
func exchange[T any](l *line, local T, failure error) (remote T, err error) {
	other, err := verbs.Exchange(l.connection, tell(local, failure))
	switch {
	case failure != nil:
		return remote, failure
	case err != nil:
		return remote, l.explain(err)
	}
	return other.Value, other.err()
}

// A word is what the ends tell each other while messages go.
type word string

const (
	wordSent word = "sent" // with the number of messages: none follows, and all have arrived
	wordDone word = "done" // all that was to come is here
)

// news is a word with a number.
type news struct {
	Word     word   `json:"word"`
	Messages uint64 `json:"messages"` // of all queue pairs
}

// say tells the other end a word, or why this end cannot go on.
func (l *line) say(n news, failure error) error {
	return l.explain(jsonline.Write(l.connection, tell(n, failure)))
}

// hear waits for a word.
func (l *line) hear(want word) (uint64, error) {
	var other told[news]
	if err := jsonline.Read(l.connection, &other); err != nil {
		return 0, l.explain(err)
	}
	if err := other.err(); err != nil {
		return 0, err
	}
	if other.Value.Word != want {
		return 0, fmt.Errorf("the other end says %q instead of %q", other.Value.Word, want)
	}
	return other.Value.Messages, nil
}
