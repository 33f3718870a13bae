package verbs

import (
	"context"
	"fmt"

	"github.com/xroce/xroce/roce/driver"
)

// CQ is a completion queue. All methods may be called concurrently.
type CQ struct {
	driver *driver.CQ
}

// CreateCQ makes a completion queue that holds cqe completions. One that finds no room brings its queue pair into
// the error state, so size it for all requests that may be in flight.
func (d *Device) CreateCQ(cqe int) (*CQ, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	c, err := d.driver.CreateCQ(cqe)
	if err != nil {
		return nil, err
	}
	return &CQ{driver: c}, nil
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

// Poll takes up to len(wcs) completions and returns their number, without blocking. It also drives the engine: a program
// that polls needs no other thread to make progress.
func (c *CQ) Poll(wcs []WC) (int, error) {
	if err := c.check(); err != nil {
		return 0, err
	}
	return c.driver.Poll(wcs)
}

// Wait blocks until the queue is not empty. It returns the error of ctx when that ends first, and ErrClosed when
// the queue is destroyed meanwhile.
func (c *CQ) Wait(ctx context.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	if ctx == nil {
		return errNoContext
	}
	return c.driver.Wait(ctx)
}

var errNoContext = fmt.Errorf("%w: the context is nil", ErrInvalid)

// Destroy destroys the queue. It fails with ErrInUse while queue pairs use it.
func (c *CQ) Destroy() error {
	if err := c.check(); err != nil {
		return err
	}
	return c.driver.Close()
}
