package perf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/xroce/xroce/verbs"
)

// Wait is how an end waits for completions, and so who drives its engine.
type Wait string

// Ways to wait.
const (
	WaitPoll   Wait = "poll"   // CQ.Poll until there is one: this program drives
	WaitBlock  Wait = "block"  // CQ.Wait, which sleeps in poll(2) on the socket
	WaitThread Wait = "thread" // select on a completion channel, while the background of the engine drives
)

// stallLimit is how long nothing may complete where something should. The transport gives up by itself long before when
// a peer does not answer, but it does not know that a message should come.
const stallLimit = 20 * time.Second

var errStalled = fmt.Errorf("nothing has completed for %v", stallLimit)

// waiter waits for completions.
type waiter interface {
	// wait returns completions in the list that it was given, at least one or else what has ended ctx. The list is
	// valid until the next call.
	wait(ctx context.Context) ([]verbs.WC, error)
	// poll returns those that are there.
	poll() ([]verbs.WC, error)
	close() error
}

// pollsPerLook is how many empty polls pass between two looks at whether to go on. A poll sleeps for a millisecond
// where the machine is full.
const pollsPerLook = 8

// taken is room for completions.
type taken struct {
	cq   *verbs.CQ
	room [32]verbs.WC
}

func (t *taken) poll() ([]verbs.WC, error) {
	n, err := t.cq.Poll(t.room[:])
	return t.room[:n], err
}

// newWaiter makes a completion queue and what waits for it.
func newWaiter(device *verbs.Device, wait Wait, capacity int) (w waiter, cq *verbs.CQ, err error) {
	attr := verbs.CQInitAttr{CQE: capacity}
	if wait == WaitThread {
		if attr.Channel, err = device.CreateCompChannel(); err != nil {
			return nil, nil, err
		}
	}
	if cq, err = device.CreateCQ(attr); err != nil {
		if attr.Channel != nil {
			err = errors.Join(err, attr.Channel.Destroy())
		}
		return nil, nil, err
	}
	t := taken{cq: cq}
	switch wait {
	case WaitBlock:
		return &blocking{t}, cq, nil
	case WaitThread:
		return &selecting{t, attr.Channel}, cq, nil
	}
	return &polling{t}, cq, nil
}

type polling struct{ taken }

func (p *polling) wait(ctx context.Context) ([]verbs.WC, error) {
	for polls := 1; ; polls++ {
		if wcs, err := p.poll(); err != nil || len(wcs) > 0 {
			return wcs, err
		}
		if polls%pollsPerLook == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

func (*polling) close() error { return nil }

type blocking struct{ taken }

func (b *blocking) wait(ctx context.Context) ([]verbs.WC, error) {
	for {
		if wcs, err := b.poll(); err != nil || len(wcs) > 0 {
			return wcs, err
		}
		if err := b.cq.Wait(ctx); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return nil, err
		}
	}
}

func (*blocking) close() error { return nil }

type selecting struct {
	taken
	channel *verbs.CompChannel
}

func (s *selecting) wait(ctx context.Context) ([]verbs.WC, error) {
	if wcs, err := s.poll(); err != nil || len(wcs) > 0 {
		return wcs, err
	}
	for {
		if err := s.cq.ReqNotify(false); err != nil {
			return nil, err
		}
		// What came before the request makes no event.
		if wcs, err := s.poll(); err != nil || len(wcs) > 0 {
			return wcs, err
		}
		select {
		case <-s.channel.Ready():
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		for found := true; found; {
			_, found = s.channel.Poll()
		}
	}
}

func (s *selecting) close() error { return s.channel.Destroy() }
