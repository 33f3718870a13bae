package verbs

import (
	"context"
	"fmt"
	"iter"

	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/queue"
)

// CQ is a completion queue. All methods may be called concurrently.
type CQ struct {
	device  *Device
	driver  *driver.CQ
	channel *CompChannel
	taker   taker

	// Guarded by the lock of the channel's list.
	listed bool // it is in there
	left   bool // it was destroyed
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
	c := &CQ{device: d, channel: a.Channel}
	if err := d.make(kindCQ, c, func() error { return c.enterAndCreate(a.CQE) }); err != nil {
		return nil, err
	}
	return c, nil
}

// enterAndCreate makes the queue one of its channel's, if it has one, and then makes it.
func (c *CQ) enterAndCreate(cqe int) error {
	config := driver.CQConfig{Capacity: cqe}
	if c.channel == nil {
		return c.create(config)
	}
	if err := c.channel.enter(c.device); err != nil {
		return err
	}
	config.Notifier, config.Group = (*notifier)(c), c.channel.group
	err := c.create(config)
	if err != nil {
		c.channel.leave(c)
	}
	return err
}

func (c *CQ) create(config driver.CQConfig) (err error) {
	if err = config.MakeRing(); err != nil {
		return err
	}
	if c.taker.ring, err = queue.NewConsumer(config.Ring.Memory, queue.CompletionLayout(config.Capacity)); err != nil {
		return err
	}
	if c.driver, err = c.device.client.CreateCQ(config); err == nil {
		c.driver.SetOwner(c)
	}
	return err
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

// Channel is the queue's completion channel, or nil.
func (c *CQ) Channel() *CompChannel {
	must(c.check())
	return c.channel
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

// Destroy destroys the queue. It fails with ErrInUse while queue pairs use it.
func (c *CQ) Destroy() error {
	if err := c.check(); err != nil {
		return err
	}
	return c.device.end(c)
}

func (c *CQ) destroy() error {
	if err := c.driver.Close(); err != nil {
		return err
	}
	c.device.belongings.remove(kindCQ, c)
	if c.channel != nil {
		c.channel.leave(c)
	}
	return nil
}
