package verbs

import (
	"context"
	"fmt"

	"github.com/xroce/xroce/roce/driver"
)

// CompChannel is a completion channel: it tells which of many completion queues have got something. All methods may
// be called concurrently. A queue whose event waits is not added again, and nothing need be acknowledged (there is no
// ibv_ack_cq_events): an event of a queue that is destroyed vanishes.
type CompChannel struct {
	device *Device
	driver *driver.CompChannel
}

// CreateCompChannel makes a completion channel; CreateCQ attaches queues to it.
func (d *Device) CreateCompChannel() (*CompChannel, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	c := &CompChannel{device: d}
	err := d.make(kindChannel, c, func() (err error) {
		c.driver, err = d.driver.CreateCompChannel()
		return err
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// check tells a channel that was created from nil and from a zero value.
func (c *CompChannel) check() error {
	if c == nil || c.driver == nil {
		return fmt.Errorf("completion channel: %w: nil, or not made by CreateCompChannel", ErrInvalid)
	}
	return nil
}

// Ready is readable while events wait, for programs that select. Whoever receives from it calls Poll until there is none, and
// must not be surprised if another goroutine was faster. It is never closed. A blocked Get is woken sooner than a select.
func (c *CompChannel) Ready() <-chan struct{} {
	must(c.check())
	return c.driver.Ready()
}

// Poll returns the queue whose event is the oldest, without blocking. Like CQ.Poll it drives the engine, and gives the CPU away.
func (c *CompChannel) Poll() (*CQ, bool) {
	must(c.check())
	cq, found := c.driver.Poll()
	if !found {
		return nil, false
	}
	return cq.Owner().(*CQ), true
}

// Get blocks until there is an event and returns its queue. It returns the error of ctx when that ends first, and ErrClosed
// when the channel is destroyed meanwhile.
func (c *CompChannel) Get(ctx context.Context) (*CQ, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if ctx == nil {
		return nil, errNoContext
	}
	cq, err := c.driver.Get(ctx)
	if err != nil {
		return nil, err
	}
	return cq.Owner().(*CQ), nil
}

// Destroy destroys the channel. It fails with ErrInUse while queues use it.
func (c *CompChannel) Destroy() error {
	if err := c.check(); err != nil {
		return err
	}
	return c.destroy()
}

func (c *CompChannel) destroy() error {
	if err := c.driver.Close(); err != nil {
		return err
	}
	c.device.belongings.remove(kindChannel, c)
	return nil
}
