package verbs

import (
	"fmt"

	"github.com/xroce/xroce/roce/driver"
	"github.com/xroce/xroce/roce/queue"
)

// CQ is a completion queue. All methods may be called concurrently.
type CQ struct {
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

// CreateCQ makes a completion queue that holds cqe completions. One that finds no room is lost and ends the queue with all its
// queue pairs (see ErrOverrun), so size it for all completions that the program may leave unpolled: a work queue takes new requests
// as soon as old ones are done, polled or not.
func (d *Device) CreateCQ(cqe int) (*CQ, error) { return d.CreateCQEx(CQInitAttr{CQE: cqe}) }

// CreateCQEx is CreateCQ with a completion channel.
func (d *Device) CreateCQEx(a CQInitAttr) (*CQ, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	c := &CQ{channel: a.Channel}
	config := driver.CQConfig{Capacity: a.CQE}
	if a.Channel != nil {
		if err := a.Channel.enter(d); err != nil {
			return nil, err
		}
		config.Notifier, config.Group = (*notifier)(c), a.Channel.group
	}
	if err := c.create(d, config); err != nil {
		if a.Channel != nil {
			a.Channel.leave(c)
		}
		return nil, err
	}
	return c, nil
}

func (c *CQ) create(d *Device, config driver.CQConfig) (err error) {
	if err = config.MakeRing(); err != nil {
		return err
	}
	if c.taker.ring, err = queue.NewConsumer(config.Ring.Memory, queue.CompletionLayout(config.Capacity)); err != nil {
		return err
	}
	if c.driver, err = d.client.CreateCQ(config); err == nil {
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

// CQE is how many completions the queue holds; 0 if it was not made by CreateCQ.
func (c *CQ) CQE() int {
	if c.check() != nil {
		return 0
	}
	return c.driver.Capacity()
}

// Channel is the queue's completion channel, or nil.
func (c *CQ) Channel() *CompChannel {
	if c.check() != nil {
		return nil
	}
	return c.channel
}

// Destroy destroys the queue. It fails with ErrInUse while queue pairs use it.
func (c *CQ) Destroy() error {
	if err := c.check(); err != nil {
		return err
	}
	if err := c.driver.Close(); err != nil {
		return err
	}
	if c.channel != nil {
		c.channel.leave(c)
	}
	return nil
}
