package verbs

import (
	"context"
	"fmt"
	"iter"

	"github.com/xroce/xroce/roce/driver"
)

// CQ is a completion queue. All methods may be called concurrently.
type CQ struct {
	device  *Device
	driver  *driver.CQ
	channel *CompChannel
}

// CQInitAttr describes a completion queue to make.
type CQInitAttr struct {
	CQE     int          // completions that it holds
	Channel *CompChannel // where its events go (CQ.ReqNotify); nil for a queue that is polled or waited for
}

// CreateCQ makes a completion queue. A completion that finds no room in it is lost and ends the queue with all its
// queue pairs (see ErrOverrun), so size it for all completions that the program may leave unpolled: a work queue
// takes new requests as soon as old ones are done, polled or not.
func (d *Device) CreateCQ(a CQInitAttr) (*CQ, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	var channel *driver.CompChannel
	if a.Channel != nil {
		if err := a.Channel.check(); err != nil {
			return nil, err
		}
		channel = a.Channel.driver
	}
	c := &CQ{device: d, channel: a.Channel}
	err := d.make(kindCQ, c, func() (err error) {
		c.driver, err = d.driver.CreateCQ(a.CQE, channel)
		return err
	})
	if err != nil {
		return nil, err
	}
	c.driver.SetOwner(c)
	return c, nil
}

// check tells a queue that was created from nil and from a zero value.
func (c *CQ) check() error {
	if c == nil || c.driver == nil {
		return fmt.Errorf("CQ: %w: nil, or not made by CreateCQ", ErrInvalid)
	}
	return nil
}

// CQE is how many completions the queue holds.
func (c *CQ) CQE() int {
	must(c.check())
	return c.driver.Capacity()
}

// Poll takes up to len(wcs) completions and returns their number, without blocking. Fewer than len(wcs) means that
// the queue was empty then. Poll also drives the engine: a program that polls needs no other thread to make progress.
// After an overrun it returns what is inside, then ErrOverrun. On a machine with more runnable threads than CPUs a
// Poll that finds nothing may sleep for up to a millisecond, as giving the CPU away would cost it more.
func (c *CQ) Poll(wcs []WC) (int, error) {
	if err := c.check(); err != nil {
		return 0, err
	}
	return c.driver.Poll(ringCompletions(wcs))
}

// Resize changes the number of completions that the queue holds. Those inside stay inside, in order; it fails with
// ErrInvalid and both numbers when cqe is below theirs.
func (c *CQ) Resize(cqe int) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.driver.Resize(cqe)
}

// ReqNotify asks for one event of the queue's channel (ibv_req_notify_cq): for the next completion, or with
// solicitedOnly for the next receive of a message that its sender posted with SendSolicited, or the next completion
// with an error status. Asking twice asks for the union. A completion that is in the queue already makes no event, so
// the order is: get the event, ask for the next one, poll until the queue is empty. Spurious events are possible.
// Blocked calls of Wait neither use up the event nor need it.
func (c *CQ) ReqNotify(solicitedOnly bool) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.driver.ReqNotify(solicitedOnly)
}

// Channel is the queue's completion channel, or nil.
func (c *CQ) Channel() *CompChannel {
	must(c.check())
	return c.channel
}

// Wait blocks until the queue is not empty. It returns the error of ctx when that ends first, ErrClosed when
// the queue is destroyed meanwhile, and ErrOverrun like Poll.
func (c *CQ) Wait(ctx context.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	if ctx == nil {
		return errNoContext
	}
	return c.driver.Wait(ctx)
}

// All returns the completions of the queue as they come, one at a time, for as long as the loop goes on:
//
//	for wc, err := range cq.All(ctx) {
//		if err != nil {
//			return err // of ctx, or ErrClosed or ErrOverrun
//		}
//		...
//	}
//
// It waits like Wait while there are none, and ends with an error: that of ctx as soon as that has ended, or that of
// Poll. Completions that the loop has not taken stay in the queue.
func (c *CQ) All(ctx context.Context) iter.Seq2[WC, error] {
	return func(yield func(WC, error) bool) {
		var wc [1]WC
		for {
			n, err := c.next(ctx, wc[:])
			if err != nil {
				yield(WC{}, err)
				return
			}
			if n > 0 && !yield(wc[0], nil) {
				return
			}
		}
	}
}

// next polls, and waits if there is nothing.
func (c *CQ) next(ctx context.Context, wcs []WC) (int, error) {
	if ctx == nil {
		return 0, errNoContext
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.Poll(wcs)
	if n == 0 && err == nil {
		err = c.Wait(ctx)
	}
	return n, err
}

var errNoContext = fmt.Errorf("%w: the context is nil", ErrInvalid)

// Destroy destroys the queue. It fails with ErrInUse while queue pairs use it.
func (c *CQ) Destroy() error {
	if err := c.check(); err != nil {
		return err
	}
	return c.destroy()
}

func (c *CQ) destroy() error {
	if err := c.driver.Close(); err != nil {
		return err
	}
	c.device.belongings.remove(kindCQ, c)
	return nil
}
